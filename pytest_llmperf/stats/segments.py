"""Variance of a run's total when its server changes slowly, from differences between runs at the same place.

A server that is slow for a while makes neighbouring requests alike. How much the total of a run then varies shows in
the slowest changes along the run. They are measured by projecting the parts of the run on the first cosines, the
constant among them (the equally weighted cosine estimator of Lazarus, Lewis, Stock and Watson, 2018). Each cosine of
each further run adds one degree of freedom. Runs of different seeds are compared at the same place, so the course that
every run takes (a cache that fills, a queue that grows) does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, log, sqrt
from typing import TYPE_CHECKING, TypeVar

from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.lazy import special
from pytest_llmperf.stats.interval import Interval, mean, sd, skewed_interval, t_quantile

if TYPE_CHECKING:
    import numpy.typing as npt
    Array = npt.NDArray[np.float64]


T = TypeVar("T")

#: Parts into which a run is cut: many more than cosines, so that the cosines are smooth.
PARTS = 60
#: By simulation (`scripts/simulate_verdicts.py slow`) of runs of ten correlation times: three cosines find 88 % of the
#: variance with so few degrees of freedom that independent requests pass too seldom, ten find 40 %, five find 71 %.
COSINES = 5
#: The same for a mean over several rows, which have enough degrees of freedom with three.
COSINES_OF_MEANS = 3
#: Requests of the same server time resemble each other: a part that one cosine distinguishes is at least so many times
#: as long as what requests share.
PART_OVERLAPS = 2
#: Values of which a third cumulant can be estimated.
FEWEST_OF_CUMULANT = 3
#: One in twenty measurements with independent requests is taken for a dependent one.
DEPENDENCE_ALPHA = 0.05


def batches(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """Cuts items into `count` consecutive parts of nearly equal size; fewer items give fewer parts."""
    count = min(count, len(items))
    return [items[len(items) * i // count:len(items) * (i + 1) // count] for i in range(count)]


def independent_segments(requests: Sequence[int], concurrency: float) -> int:
    """Parts of the shortest run that hardly share a request, at most `PARTS`; 0 where all of it is served at once.

    Args:
        requests: of each run, how many.
        concurrency: requests that are served at once, on average.
    """
    return min(PARTS, int(min(requests, default=0) / max(1.0, PART_OVERLAPS * (concurrency - 1))))


def cosines_for(parts: int, seeds: int) -> int:
    """How many cosines the runs are projected on, 1 or more.

    Args:
        parts: of a run that hardly share a request (`apart`).
        seeds: draws of the traffic. A single seed gives no difference between seeds.
    """
    return max(1, min(COSINES, parts if seeds > 1 else parts - 1))


def slow_variance(residuals: Array, cosines: int) -> tuple[float, int]:
    """Variance of one row's total, and its degrees of freedom.

    Args:
        residuals: rows × parts, each less the mean of its place; of a single row, less the row's mean.
        cosines: 1 or more (`cosines_for`).
    """
    rows, parts = residuals.shape
    projected = residuals @ _cosines(parts, cosines, constant=rows > 1).T
    df = projected.shape[1] * max(1, rows - 1)
    return float((projected**2).sum()) / df, df


def slow_interval(centre: float, parts: Array, cosines: int, confidence: float) -> Interval:
    """Interval of a mean, with variance and skewness from slow changes along the rows.

    Rows without a slow change have a low mean and look precise at the same time. So the error above the mean is
    proportional to the true mean: the upper limit U solves U = centre + error · U ÷ centre.

    Args:
        centre: the mean.
        parts: rows × parts; one row per run or seed, 3 parts or more.
        cosines: 1 or more (`cosines_for`).
        confidence: of each limit, one-sided.
    """
    residuals = parts - (parts.mean(0) if len(parts) > 1 else parts.mean())
    variance, df = slow_variance(residuals, min(cosines, COSINES_OF_MEANS) if len(parts) > 1 else cosines)
    error = (len(parts) * variance) ** 0.5 / parts.size
    skewness = skewness_of_mean(parts, error) if error > 0 else 0.0
    interval = skewed_interval(centre, error, skewness, confidence, df)
    if centre <= 0:
        return interval
    relative = interval.high / centre - 1
    return replace(interval, high=centre / (1 - relative) if relative < 1 else inf)


def skewness_of_mean(parts: Array, error: float) -> float:
    """Skewness of the mean of all parts, between 0 and 1, from the third cumulant of a part.

    Parts of three or more rows are compared with the parts at the same place, so the course that every row takes does
    not count. Parts of fewer rows are compared with their own row. No mean of independent parts shows a skewness above
    1: there one part has the whole deviation.

    Args:
        parts: rows × parts; 3 parts or more.
        error: standard error of the mean of all parts, above 0.
    """
    groups = parts.T if len(parts) >= FEWEST_OF_CUMULANT else parts
    deviations, count = groups - groups.mean(1, keepdims=True), groups.shape[1]
    cumulant = float((deviations**3).sum(1).mean()) * count / ((count - 1) * (count - 2))
    skewness: float = cumulant / parts.size**2 / error**3
    return min(1.0, max(0.0, skewness))


def dependent_above(df: int) -> float:
    """Measured variance, over that of independent requests, above which requests are shown to depend."""
    return float(special.chdtri(df, DEPENDENCE_ALPHA)) / df


@lru_cache(maxsize=256)
def _cosines(parts: int, count: int, *, constant: bool) -> Array:
    """Cosines × parts, each with as large a sum of squares as the constant 1."""
    frequencies = np.arange(count) + (0 if constant else 1)
    frequencies = frequencies[frequencies < max(2, parts)]
    places = (np.arange(parts) + 0.5) / parts
    waves: Array = np.cos(np.pi * frequencies[:, None] * places)
    waves[frequencies > 0] *= 2**0.5
    return waves


#: Half-widths of the levels' t interval by which a PASS must stay clear of the limit. At the exact limit, five starts
#: and shifts of 0.3 to 1 sd: 1 gives up to 12 % false PASS, 1.5 up to 8 %, 2 up to 5 %.
MARGIN_HALF_WIDTHS = 2.0
#: The same for the level of a server that changes slowly. Behind a queue at 85 % load (3 × 1,000 requests, p99 at its
#: exact limit, 200 trials) 3 gives 6 % false PASS and 4 gives 4 %; a limit of twice the truth passes in 76 and 62 %.
LEVEL_REACH = 3.0
#: Upper bound of the pass margin, as a log ratio; also the margin if too few latencies allow no estimate.
LARGEST_MARGIN = 20.0


def start_pass_margin(values: Sequence[Sequence[float]], starts: Sequence[str], confidence: float) -> float:
    """Pass margin, as a log ratio, for differences between server starts; 0 for a single start.

    Args:
        values: latencies per run; only finite latencies above 0 count.
        starts: server start of each run.
        confidence: confidence of the one-sided test that uses the margin.
    """
    by_start: dict[str, list[float]] = {}
    for run, start in zip(values, starts, strict=True):
        by_start.setdefault(start, []).extend(run)
    levels = [level for level in map(_mean_log, by_start.values()) if level is not None]
    if len(levels) < 2:
        return 0.0
    return min(
        LARGEST_MARGIN, MARGIN_HALF_WIDTHS * t_quantile(confidence, len(levels) - 1) * sd(levels) / sqrt(len(levels))
    )


def level_pass_margin(
    values: Sequence[Sequence[float]], seeds: Sequence[int], overlap: float, confidence: float
) -> float:
    """Pass margin of the level model, as a log ratio, for slow changes of the server.

    Args:
        values: latencies per run in order of time; only finite latencies above 0 count.
        seeds: seed of each run.
        overlap: mean concurrency of the requests; 1 if the latencies are single gaps in order of time.
        confidence: confidence of the one-sided test that uses the margin.

    Returns:
        The largest margin if a run has too few latencies for an estimate.
    """
    logs = [np.log([value for value in run if 0 < value < inf]) for run in values]
    parts = min(PARTS, *map(len, logs), PARTS)
    if parts < 2:
        return LARGEST_MARGIN
    means = [np.array([part.mean() for part in np.array_split(run, parts)]) for run in logs]
    draws = dict.fromkeys(seeds)
    rows = np.stack([np.mean([run for run, seed in zip(means, seeds, strict=True) if seed == draw], axis=0)
                     for draw in draws])
    residuals = rows - (rows.mean(0) if len(draws) > 1 else rows.mean())
    variance, df = slow_variance(
        residuals, cosines_for(independent_segments([len(run) for run in logs], overlap), len(draws))
    )
    return min(LARGEST_MARGIN, LEVEL_REACH * t_quantile(confidence, df) * sqrt(variance / len(draws)) / parts)


def _mean_log(values: Sequence[float]) -> float | None:
    logs = [log(value) for value in values if 0 < value < inf]
    return mean(logs) if logs else None
