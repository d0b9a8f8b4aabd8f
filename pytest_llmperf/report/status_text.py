"""Texts for the phase that a test is in."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_llmperf.model.status import Measuring, Note, Starting, Status

MINUTE_S = 60


def sentence(status: Status, elapsed_s: float) -> str:
    """One line that can stand alone in a log.

    Args:
        elapsed_s: since the phase began.
    """
    if isinstance(status, Note):
        return status.text
    if isinstance(status, Measuring):
        return f"{status.phase}: {', '.join(facts(status))}"
    log_line = f": {status.log_line}" if isinstance(status, Starting) and status.log_line else ""
    return f"{status.phase}, {duration(elapsed_s)}{log_line}"


def facts(status: Measuring) -> Iterator[str]:
    """Facts about a run in progress, the most certain first."""
    yield f"{status.done} of {status.requests} answered"
    if status.failed:
        yield f"{status.failed} failed"
    if status.rate is not None:
        target_rate = "" if status.requested_rate is None else f" ({status.requested_rate:.3g}/s asked)"
        yield f"{status.rate:.3g}/s{target_rate}"
    if status.ttft_ms is not None:
        yield f"TTFT {status.ttft_ms:.3g} ms"
    if status.itl_ms is not None:
        yield f"ITL {status.itl_ms:.3g} ms"
    yield duration(status.elapsed_s)
    if status.left_s:
        yield f"{duration(status.left_s)} left"
    if status.search is not None and status.left_s is not None:
        least_s, most_s = status.left_s + status.search.least_s, status.left_s + status.search.most_s
        yield f"search: {duration(least_s)} to {duration(most_s)} left"


def duration(value_s: float) -> str:
    """For people: "42 s", "3 min 5 s"."""
    whole_s = round(value_s)
    return f"{whole_s} s" if whole_s < MINUTE_S else f"{whole_s // MINUTE_S} min {whole_s % MINUTE_S} s"
