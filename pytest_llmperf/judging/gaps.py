"""Gaps between tokens in the order of their ends. A step that stalls delays all streams at the same time.

Overlapping requests see the same stalls, so segments of requests do not show the dependence. Example: 128 streams in
three waves, three runs, 1 % of the steps stall, and itl_p99 is exactly at its limit. Segments of requests gave 20 %
PASS and 18 % FAIL; segments of time gave 1 % PASS and 2 % FAIL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.metrics.failed_as_infinite import missing_observations
from pytest_llmperf.metrics.run import RunMetrics
from pytest_llmperf.stats.design import Count
from pytest_llmperf.stats.segments import PARTS

if TYPE_CHECKING:
    import numpy.typing as npt

_NS_PER_MS = 1_000_000


def exceedances_by_segment(run: RunMetrics, family: str, limit_ms: float) -> list[Count]:
    """How many are over a limit in each stretch of the run; stretches have equally many."""
    limit_ns = round(limit_ms * _NS_PER_MS)
    return [Count(int((part > limit_ns).sum()), len(part)) for part in gap_segments_ns(run, family, PARTS)]


def gap_segments_ns(run: RunMetrics, family: str, count: int) -> list[npt.NDArray[np.float64]]:
    """Observations in the order in which they ended, cut into equally many; those of failed requests are infinite."""
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
