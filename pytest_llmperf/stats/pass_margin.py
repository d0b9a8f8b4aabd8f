"""The pass margin: how far a PASS must stay below its limit because server starts differ or the server changes slowly.

Counts of exceedances cannot detect large differences between starts. The tail comes from a few slow starts, and five
starts without a slow one show a low and uniform exceedance rate (up to 26 % false PASS at a shift of one sd).
The means of the latencies do detect such differences.

If requests depend on each other, counts cannot prove even a limit far above all latencies: no request exceeds the
limit, and only few requests are independent. The level model can prove such a limit. The model assumes that slow
changes multiply all latencies by a common factor, and that requests are independent otherwise. The sentence of such a
PASS names the model.
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
