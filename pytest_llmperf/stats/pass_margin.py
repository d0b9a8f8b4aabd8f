"""How far a PASS must stay below its limit because server starts differ, or because the server changes slowly.

Counts alone cannot see starts that differ much: a tail comes from the few slow ones, and five lucky starts show both a
low rate and an even one (up to 26 % false PASS at a shift of one sd). The latencies themselves do see it.

Nor can counts prove a limit that is far from all latencies of a server whose requests depend on each other: no request
is over it, and few of them are independent. The level model can. It assumes that slow changes move all latencies by
one factor, and that requests are independent beside it. A PASS that rests on the model says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log, sqrt

from pytest_llmperf.stats.mean import mean, sd, t_quantile
from pytest_llmperf.stats.segments import PARTS, cosines_for, independent_segments, slow_variance

#: Half-widths of the levels' t interval by which a PASS must stay clear of the limit. At the exact limit, five starts
#: and shifts of 0.3 to 1 sd: 1 gives up to 12 % false PASS, 1.5 up to 8 %, 2 up to 5 %.
MARGIN_HALF_WIDTHS = 2.0
#: The same for the level of a server that changes slowly. Behind a queue at 85 % load (3 × 1,000 requests, p99 at its
#: exact limit, 200 trials) 3 gives 6 % false PASS and 4 gives 4 %; a limit of twice the truth passes in 76 and 62 %.
LEVEL_REACH = 3.0
#: Beyond it nothing is known of the levels, and no number says more.
LARGEST_MARGIN = 20.0


def start_pass_margin(values: Sequence[Sequence[float]], starts: Sequence[str], confidence: float) -> float:
    """How far, as a log ratio, a PASS must stay below its limit because server starts differ; 0 for a single start.

    Args:
        values: of each run its latencies; only finite ones above 0 count.
        starts: of each run the server start that it ran on.
        confidence: of the one-sided test that will use it.
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


def level_reach(values: Sequence[Sequence[float]], seeds: Sequence[int], overlap: float, confidence: float) -> float:
    """How far, as a log ratio, a PASS by the level model must stay below its limit because the server changes slowly.

    Args:
        values: of each run its latencies in order of time; only finite ones above 0 count.
        seeds: of each run that of its requests.
        overlap: requests that are served at once, on average; 1 where the latencies are single gaps by time.
        confidence: of the one-sided test that will use it.

    Returns:
        A large ratio where a run has too few latencies to show anything.
    """
    import numpy as np

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
