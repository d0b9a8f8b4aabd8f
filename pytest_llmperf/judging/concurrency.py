"""Concurrency of requests. Concurrent requests share the server's stalls, queues and slow periods.

Concurrent requests are therefore less evidence than as many successive requests. docs/verdicts.md states the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_llmperf.metrics.registry import find_family
from pytest_llmperf.metrics.run import RunMetrics


def mean_concurrency(runs: Sequence[RunMetrics], family: str) -> float:
    """Mean concurrency of requests in the phase that a latency family measures, weighted by request.

    With concurrency c at time t: ∫ c² dt ÷ ∫ c dt, Kish's design effect of weights; at least 1.
    """
    during = find_family(family).during
    alone = concurrency = 0
    for run in runs:
        for requests, length_ns in _concurrency_intervals(map(during, run.records)):
            alone += requests * length_ns
            concurrency += requests**2 * length_ns
    return max(1.0, concurrency / alone) if alone else 1.0


def observations_per_step(runs: Sequence[RunMetrics], family: str, streams: float) -> float:
    """Mean number of observations per server step; 1 for a latency that does not arise in a single step.

    A gap arises in one step of all decoded streams. A gap per token counts once for each token of a chunk.

    Args:
        runs: one or more runs.
        family: latency family.
        streams: mean concurrency of the streams.
    """
    if not find_family(family).one_gap:
        return 1.0
    if find_family(family).per_request:
        return streams
    gaps = sum(max(0, len(record.arrivals_ns) - 1) for run in runs for record in run.records if record.ok)
    taken = sum(len(values or ()) for run in runs for values in run.by_request(family) or ())
    return max(1.0, streams * taken / gaps) if gaps else 1.0


def _concurrency_intervals(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Numbers of overlapping spans in the order of time, each with its duration in nanoseconds."""
    changes = sorted(change for begin, end in spans if begin < end for change in ((begin, 1), (end, -1)))
    requests, since_ns = 0, 0
    for at_ns, change in changes:
        yield requests, at_ns - since_ns
        requests, since_ns = requests + change, at_ns
