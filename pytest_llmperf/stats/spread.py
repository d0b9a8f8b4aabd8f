"""Variances of runs and sessions, from what the runs show and what is known beforehand.

Few sessions know their spread badly: both variances are shrunk towards a prior (scaled inverse χ² with `Prior.df`
degrees of freedom). Where the runs are noisier than the prior says, sessions are taken to be so too, in the prior's
proportion: one stored session on hardware six times noisier than its prior then alarms falsely in 0.6 % of suite runs,
by simulation (scripts/simulate_verdicts.py).

A gross regression must FAIL before enough runs and sessions are there to know how much sessions differ. The comparison
then takes sessions to differ by `GROSS` times the estimate. Among the H200 hosts of docs/measured/h200.md the largest
ratio of sd between hosts to the sd that this module expects was 5 (the roofline's median ITL, 2.0 % of 0.4 %).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from pytest_llmperf.stats.prior import Prior

if TYPE_CHECKING:
    from pytest_llmperf.stats.layout import Layout

#: How many times the estimated sd sessions may differ by where only a gross regression is to FAIL.
GROSS = 8.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Variances of runs, sessions and the effect.

    Args:
        run, session: of one run, of one session.
        variance, df: of the effect, with its degrees of freedom.
        gross_variance, gross_df: of the effect where sessions differ by `GROSS` times the estimate.
    """

    run: float
    session: float
    variance: float
    df: float
    gross_variance: float
    gross_df: float


def spread(plan: Layout, run_squares: float, session_squares: float, prior: Prior,
           larger: Callable[[float, float], float]) -> Spread:
    """Variances from sums of squares and a prior.

    Args:
        plan: which seeds ran where.
        run_squares, session_squares: as `Layout` gives them.
        prior: of this metric.
        larger: maximum of two; with numpy's, all this works on arrays as well.
    """
    run_df = prior.df + plan.leftover_df
    run = (prior.df * prior.run_sd**2 + run_squares) / run_df
    undiluted = larger(run, run_squares / max(1, plan.leftover_df))
    expected = prior.session_sd**2 * larger(1.0, undiluted / prior.run_sd**2)
    stored_df = plan.sessions - 1
    weight = stored_df / (prior.df + stored_df)
    from_runs = plan.levels_runs * run
    observed = larger(from_runs, session_squares / max(1, stored_df))
    today = 1 + 1 / plan.sessions
    parts = (
        (today * (1 - weight) * expected, prior.df),
        (today * weight * observed, float(stored_df)),
        (plan.effect_runs * run - today * weight * from_runs, run_df),
    )
    used = parts if stored_df else (parts[0], parts[2])
    calm = prior.session_sd**2 * larger(1.0, run / prior.run_sd**2)
    bound = GROSS**2 * today * ((1 - weight) * calm + weight * observed)
    gross = ((bound, inf), (plan.effect_runs * run, run_df))
    return Spread(run, (1 - weight) * expected + weight * (observed - from_runs),
                  sum(variance for variance, _ in used), satterthwaite(used),
                  sum(variance for variance, _ in gross), satterthwaite(gross))


def satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Effective degrees of freedom of a sum of variances (Satterthwaite, 1946): (Σ v)² / Σ (v² / df).

    Args:
        parts: (coefficient × mean square, its degrees of freedom), not all 0. A coefficient may be negative.
    """
    total = sum(variance for variance, _ in parts)
    return total**2 / sum(variance**2 / df for variance, df in parts)
