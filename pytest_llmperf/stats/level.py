"""Whether successive runs of one server start stay at one level, although each has a seed, and so requests, of its own.

What a run's mean owes to its seed is estimated from within the runs: each is cut into as many stretches of successive
requests, and what is left of a stretch's mean once its run's mean and its position's mean are taken away (two-way
analysis of variance) is the luck of its requests. The position's mean takes away what belongs to the workload: the
run-in, the tail, conversations that grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum, log, sqrt

from pytest_llmperf.stats.drift import Drift, drift
from pytest_llmperf.stats.mean import mean
from pytest_llmperf.stats.prior import Prior
from pytest_llmperf.stats.spread import satterthwaite

STRETCHES = 10
FEWEST_RUNS = 3
#: Runs may differ by twice what the prior says: an ERROR must not come from a machine that is merely noisy.
CAUTION = 2.0


def level_drift(runs: Sequence[Sequence[float]], prior: Prior) -> Drift | None:
    """A straight line through the mean logarithms of successive runs.

    Args:
        runs: in the order of time; of each a positive value per request in the order of sending, e.g. its TPOT.
        prior: how much runs of the same seed differ.

    Returns:
        None where there are fewer than three runs, or fewer requests than stretches in one of them.
    """
    if len(runs) < FEWEST_RUNS or min(map(len, runs)) < STRETCHES:
        return None
    stretches = [_stretches([log(value) for value in run]) for run in runs]
    levels = [mean(of_run) for of_run in stretches]
    positions = [mean(of_position) for of_position in zip(*stretches, strict=True)]
    whole = mean(levels)
    residuals = [value - level - position + whole
                 for of_run, level in zip(stretches, levels, strict=True)
                 for value, position in zip(of_run, positions, strict=True)]
    within_df = (STRETCHES - 1) * (len(runs) - 1)
    within = fsum(value**2 for value in residuals) / within_df / STRETCHES
    between = (CAUTION * prior.run_sd) ** 2
    df = satterthwaite([(within, within_df), (between, prior.df)])
    return drift(levels, sqrt(within + between), df)


def _stretches(values: Sequence[float]) -> list[float]:
    """Means of as equal parts as there can be."""
    bounds = [round(part * len(values) / STRETCHES) for part in range(STRETCHES + 1)]
    return [mean(values[start:end]) for start, end in pairwise(bounds)]
