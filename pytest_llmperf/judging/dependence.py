"""Dependence of the requests of a run: concurrent requests share the server's stalls, queues and slow periods.

Concurrent requests are therefore less evidence than as many successive requests. docs/verdicts.md states the rule.

A step that stalls delays all streams at the same time, so segments of requests do not show this dependence; gaps
between tokens in the order of their ends do. Example: 128 streams in three waves, three runs, 1 % of the steps stall,
and itl_p99 is exactly at its limit. Segments of requests gave 20 % PASS and 18 % FAIL; segments of time gave 1 % PASS
and 2 % FAIL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.metrics.failed_as_infinite import missing_observations
from pytest_llmperf.metrics.registry import find_family
from pytest_llmperf.metrics.run import RunMetrics
from pytest_llmperf.stats.design import Count
from pytest_llmperf.stats.segments import PARTS

if TYPE_CHECKING:
    import numpy.typing as npt

_NS_PER_MS = 1_000_000


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


def exceedances_by_segment(run: RunMetrics, family: str, limit_ms: float) -> list[Count]:
    """Exceedances of a limit in each segment of the run; all segments have equally many observations."""
    limit_ns = round(limit_ms * _NS_PER_MS)
    return [Count(int((part > limit_ns).sum()), len(part)) for part in gap_segments_ns(run, family, PARTS)]


def gap_segments_ns(run: RunMetrics, family: str, count: int) -> list[npt.NDArray[np.float64]]:
    """Observations by their end time, in `count` segments of equal size; a failed request has infinite observations."""
    values, ends = [np.empty(0)], [np.empty(0)]
    for taken, end_times in _by_request(run, family):
        values.append(taken)
        ends.append(end_times)
    in_order = np.argsort(np.concatenate(ends), kind="stable")
    return np.array_split(np.concatenate(values)[in_order], count)


def _by_request(
    run: RunMetrics, family: str
) -> Iterator[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Observations of each request, with their end times. Observations of a failed request have its intended send time.
    """
    missing = missing_observations(run, family)
    for position, values in enumerate(run.by_request(family) or ()):
        record = run.records[position]
        if values is None:
            yield np.full(missing[position], np.inf), np.full(missing[position], float(record.intended_ns))
        elif values:
            taken = np.asarray(values, dtype=np.float64)
            yield taken, record.arrivals_ns[0] + np.cumsum(taken)
