"""Converts the progress of a replay to a status for the display: rates, latencies so far, time left."""

from __future__ import annotations

from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.model.status import Measuring

NS_PER_S = 1e9


def measuring_status(progress: Progress, plan: LoadPlan, *, run: int, runs: int, label: str = "") -> Measuring:
    """The status of an unfinished run.

    Args:
        run, runs: number of the run, from 1, and number of runs.
        label: further name of the run, such as the side of a claim.
    """
    elapsed_s = progress.elapsed_ns / NS_PER_S
    last_s = _last_send_s(plan)
    left_s = _left_s(progress, len(plan.requests), last_s)
    whole_s = None if left_s is None else elapsed_s + left_s
    return Measuring(
        run=run,
        runs=runs,
        asked=len(plan.requests),
        done=progress.done,
        failed=progress.failed,
        elapsed_s=elapsed_s,
        rate_asked=(len(plan.requests) - 1) / last_s if last_s else None,
        rate=progress.done / elapsed_s if progress.done and elapsed_s else None,
        ttft_ms=_ms(progress.ttft_ns),
        itl_ms=_ms(progress.itl_ns),
        left_s=None if left_s is None or whole_s is None else left_s + (runs - run) * whole_s,
        label=label,
    )


def _last_send_s(plan: LoadPlan) -> float | None:
    """Intended send time of the last request, in seconds after the start; None if send times depend on answers."""
    due_ns = [request.at_ns for request in plan.requests]
    send_times_ns = [at_ns for at_ns in due_ns if at_ns is not None]
    return max(send_times_ns) / NS_PER_S if send_times_ns and len(send_times_ns) == len(due_ns) else None


def _left_s(progress: Progress, asked: int, last_send_s: float | None) -> float | None:
    """Estimated remaining seconds of the run: the rest of the schedule, or an extrapolation of the pace so far."""
    elapsed_s = progress.elapsed_ns / NS_PER_S
    if progress.done >= asked:
        return 0.0
    if last_send_s is not None and elapsed_s < last_send_s:
        return last_send_s - elapsed_s
    return elapsed_s * (asked - progress.done) / progress.done if progress.done else None


def _ms(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / 1e6
