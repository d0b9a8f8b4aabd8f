"""Variances of runs and sessions, from what the runs show and what is known beforehand.

Few sessions of one test know their spread badly. Both variances are shrunk towards a prior (scaled inverse χ² with
`Prior.df` degrees of freedom). Once the sessions of the suite show how much sessions differ (`suite_spread`), the
variance between sessions is shrunk towards theirs, with `SUITE_DF` degrees of freedom. Until then sessions are taken to
be noisier than the prior in the proportion in which the runs are.

The spread of sessions has no more degrees of freedom than that: tests of one suite differ in noise, and sessions have
heavy tails. A simulation chose the number (`scripts/simulate_verdicts.py young`, five tests of two metrics, session sd
2 %, two stored sessions). 10 degrees of freedom find +20 % in 97.3 % of tests, and under t(3) tails 1.5 to 2.0 % of
unchanged suites are red. 12 find 98.9 % and raise 1.8 to 2.2 %. 16 find 99.7 % and raise 2.8 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_llmperf.stats.prior import Prior

if TYPE_CHECKING:
    from pytest_llmperf.stats.layout import Layout

#: Weight of the suite's spread against a test's own sessions, and degrees of freedom of both together.
SUITE_DF = 12.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Variances of runs, sessions and the effect.

    Args:
        run, session: of one run, of one session.
        variance, df: of the effect, with its degrees of freedom.
    """

    run: float
    session: float
    variance: float
    df: float


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
    expected, expected_df = prior.session_sd**2, SUITE_DF
    if not prior.learnt:
        expected, expected_df = expected * larger(1.0, undiluted / prior.run_sd**2), prior.df
    stored_df = plan.sessions - 1
    weight = stored_df / (expected_df + stored_df)
    from_runs = plan.levels_runs * run
    observed = larger(from_runs, session_squares / max(1, stored_df))
    today = 1 + 1 / plan.sessions
    assumed, own = today * (1 - weight) * expected, today * weight * observed
    runs = (plan.effect_runs * run - today * weight * from_runs, run_df)
    if prior.learnt:
        parts: Sequence[tuple[float, float]] = ((assumed + own, SUITE_DF), runs)
    else:
        parts = ((assumed, prior.df), (own, float(stored_df)), runs) if stored_df else ((assumed, prior.df), runs)
    return Spread(run, (1 - weight) * expected + weight * (observed - from_runs),
                  sum(variance for variance, _ in parts), satterthwaite(parts))


def satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Effective degrees of freedom of a sum of variances (Satterthwaite, 1946): (Σ v)² / Σ (v² / df).

    Args:
        parts: (coefficient × mean square, its degrees of freedom), not all 0. A coefficient may be negative.
    """
    total = sum(variance for variance, _ in parts)
    return total**2 / sum(variance**2 / df for variance, df in parts)
