"""Checks whether successive runs of one server start, each with its own seed, drift.

Runs with different seeds have different requests, so their means differ by chance. This chance variation is estimated
within the runs. Each run is cut into ten segments of successive requests. The residual of a segment is its mean without
the mean of its run and without the mean of segment k over all runs (two-way analysis of variance). The mean of segment
k contains the effects of the workload: the ramp-up, the tail, and conversations that grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum, log, sqrt

from pytest_llmperf.stats.drift import Drift, drift
from pytest_llmperf.stats.mean import mean
from pytest_llmperf.stats.prior import Prior
from pytest_llmperf.stats.spread import satterthwaite

SEGMENTS = 10
FEWEST_RUNS = 3
#: Runs may differ by twice what the prior says: an ERROR must not come from a machine that is merely noisy.
CAUTION = 2.0


def level_drift(runs: Sequence[Sequence[float]], prior: Prior) -> Drift | None:
    """A straight line through the mean logarithms of successive runs.

    Args:
        runs: runs in the order of time, each with a positive value per request in send order, e.g. the TPOT.
        prior: prior for the sd between runs of the same seed.

    Returns:
        None for fewer than three runs, or if a run has fewer requests than segments.
    """
    if len(runs) < FEWEST_RUNS or min(map(len, runs)) < SEGMENTS:
        return None
    segments = [_segments([log(value) for value in run]) for run in runs]
    levels = [mean(of_run) for of_run in segments]
    positions = [mean(of_position) for of_position in zip(*segments, strict=True)]
    whole = mean(levels)
    residuals = [value - level - position + whole
                 for of_run, level in zip(segments, levels, strict=True)
                 for value, position in zip(of_run, positions, strict=True)]
    within_df = (SEGMENTS - 1) * (len(runs) - 1)
    within = fsum(value**2 for value in residuals) / within_df / SEGMENTS
    between = (CAUTION * prior.run_sd) ** 2
    df = satterthwaite([(within, within_df), (between, prior.df)])
    return drift(levels, sqrt(within + between), df)


def _segments(values: Sequence[float]) -> list[float]:
    """Means of the ten segments of a run, whose sizes differ by at most one request."""
    bounds = [round(part * len(values) / SEGMENTS) for part in range(SEGMENTS + 1)]
    return [mean(values[start:end]) for start, end in pairwise(bounds)]
