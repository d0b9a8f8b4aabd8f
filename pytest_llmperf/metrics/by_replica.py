"""What each replica of a service did, by the response header that names the replica."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import fsum
from typing import TypeVar

from pytest_llmperf.metrics.families import output_tokens, prompt_tokens, tpot, ttft
from pytest_llmperf.model.record import RequestRecord

T = TypeVar("T")

#: Number of answers that named the replica. Replicas of a metrics page have no such count.
ANSWERS = "answers"


def counters_by_replica(records: Sequence[RequestRecord]) -> dict[str, dict[str, float | None]]:
    """Counters of each replica in one run by canonical name, times in seconds; empty if no answer names a replica.

    A counter is left out if an answer lacks the number. Failed requests count in `answers` alone.
    """
    answers: dict[str, list[RequestRecord]] = {}
    for record in records:
        if record.replica is not None:
            answers.setdefault(record.replica, []).append(record)
    return {name: _counters(answers[name]) for name in sorted(answers)}


def _counters(answers: Sequence[RequestRecord]) -> dict[str, float | None]:
    served = [record for record in answers if record.ok]
    counters: dict[str, float | None] = {ANSWERS: float(len(answers)), "requests_finished": float(len(served))}
    counts: dict[str, Callable[[RequestRecord], int | None]] = {
        "prompt_tokens": prompt_tokens, "generation_tokens": output_tokens,
        "prompt_tokens_cached": lambda record: record.cached_tokens,
    }
    for name, count in counts.items():
        if (known := _all_known(map(count, served))) is not None:
            counters[name] = float(sum(known))
    for name, take in (("ttft", ttft), ("tpot", tpot)):
        if (samples := _all_known(map(take, served))) is not None:
            times_ns = [time_ns for sample in samples for time_ns in sample]
            counters |= {f"{name}_s_sum": fsum(times_ns) / 1e9, f"{name}_count": float(len(times_ns))}
    return counters


def _all_known(values: Iterable[T | None]) -> list[T] | None:
    """The values; None if one is missing."""
    every = list(values)
    known = [value for value in every if value is not None]
    return known if len(known) == len(every) else None
