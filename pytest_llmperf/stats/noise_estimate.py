"""Estimates the noise between runs and between sessions, and the smallest change that can be detected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.stats.decision import MetricComparison, spent_share
from pytest_llmperf.stats.interval import t_quantile
from pytest_llmperf.stats.layout import layout
from pytest_llmperf.stats.priors import Margins, Prior
from pytest_llmperf.stats.shift import SeededRun, Shift, spread

MOST_RUNS = 64
#: Confidence of the strictest look of a claim, one-sided.
STRICTEST = 0.9975


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """Standard deviations on a metric's scale.

    Args:
        run_sd: from one run to the next of the same seed within a session.
        session_sd: from one session to the next; 0 where runs explain all of it.
        run_df, session_df: degrees of freedom.
        level_sd: of the sessions' means, which run noise is a part of.
    """

    run_sd: float
    session_sd: float
    run_df: int
    session_df: int
    level_sd: float = 0.0


def estimate_noise(sessions: Sequence[Sequence[SeededRun]]) -> NoiseEstimate:
    """Standard deviations of runs and sessions from A/A sessions: value = seed + session + noise, by least squares.

    Raises:
        ValueError: fewer than two sessions, or no two runs of one seed, so that nothing is left to learn from.
    """
    runs = [(number, seed, value) for number, session in enumerate(sessions) for seed, value in session]
    seeds = sorted({seed for _, seed, _ in runs})
    design = np.zeros((len(runs), len(sessions) + len(seeds)))
    for row, (number, seed, _) in enumerate(runs):
        design[row, number] = design[row, len(sessions) + seeds.index(seed)] = 1
    values = np.array([value for _, _, value in runs])
    run_df = len(runs) - (int(np.linalg.matrix_rank(design)) if runs else 0)
    if len(sessions) < 2 or run_df < 1:
        raise ValueError(f"{len(sessions)} sessions of {len(runs)} runs with {len(seeds)} seeds: nothing to learn from")
    solve = np.linalg.pinv(design)
    levels = solve[:len(sessions)] - solve[:len(sessions)].mean(0)
    run = float(np.square(values - design @ (solve @ values)).sum()) / run_df
    session_df = len(sessions) - 1
    from_runs = float(np.square(levels).sum()) / session_df * run
    level = float(np.square(levels @ values).sum()) / session_df
    return NoiseEstimate(run**0.5, max(0.0, level - from_runs) ** 0.5, run_df, session_df, level**0.5)


def start_sd_factor(df: int) -> float:
    """Factor for an sd with `df` degrees of freedom, for a rule that treats the sd as exact.

    The ratio of the t and the normal quantile: of ten sessions 1.31, of five 1.99, of three 5.0.
    """
    return t_quantile(STRICTEST, df) / t_quantile(STRICTEST, None)


def smallest_detectable(
    noise: NoiseEstimate, prior: Prior, margins: Margins, alpha: float, *, runs: int, sessions: int, seeds: int
) -> float:
    """Smallest effect, as a distance, that fails in nine of ten cases; infinite if alpha is 0.

    Args:
        noise: this noise.
        prior: that verdicts start from.
        margins: as distances.
        alpha: error that the comparison may make.
        runs: of today's.
        sessions, seeds: stored sessions, and runs in each, one per seed.
    """
    plan = layout(tuple(number % seeds for number in range(runs)), (tuple(range(seeds)),) * sessions)
    run, session = noise.run_sd**2, noise.session_sd**2
    expected = spread(plan, run * plan.leftover_df, (session + plan.levels_runs * run) * (sessions - 1), prior)
    expected_shift = Shift(0.0, 0.0, expected.variance**0.5, expected.df, noise.run_sd, noise.session_sd, (), sessions,
                           sessions * seeds, prior)
    return MetricComparison(expected_shift, margins).smallest_detectable(alpha)


def runs_needed(
    noise: NoiseEstimate, prior: Prior, margins: Margins, alpha: float, effect: float, *, sessions: int, seeds: int
) -> int | None:
    """Fewest runs with which a comparison detects an effect with a probability of 90 % in one look; None for more than
    64.

    Args:
        alpha: error probability of the comparison after its last look. Few runs may spend a part of alpha or none.
    """
    return next(
        (runs for runs in range(1, MOST_RUNS + 1)
         if smallest_detectable(noise, prior, margins, alpha * spent_share(runs), runs=runs, sessions=sessions,
                                seeds=seeds) <= effect),
        None,
    )
