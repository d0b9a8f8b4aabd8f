"""How much worse today's runs are than the stored ones, paired by seed, and how well that is known.

SE² = s_session² (1 + 1/D) + s_run² (1/k + 1/m) with k runs today and m over D stored sessions, or what least squares
make of it where seeds and numbers are uneven (`layout`). The variances are the data's and a prior's (`spread`).

t limits hold for runs with heavy tails (t with 3 degrees of freedom; tests/unit/scripts/test_simulations.py). A few
spoilt runs among today's do move a mean, so an alarm must not be carried by a minority (`LevelShift.carried`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.lazy import special
from pytest_llmperf.stats.interval import t_quantile
from pytest_llmperf.stats.priors import Prior

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


def spread(plan: Layout, run_squares: float, session_squares: float, prior: Prior) -> Spread:
    """Variances from sums of squares and a prior.

    Args:
        plan: which seeds ran where.
        run_squares, session_squares: as `Layout` gives them.
        prior: of this metric.
    """
    run_df = prior.df + plan.leftover_df
    run = (prior.df * prior.run_sd**2 + run_squares) / run_df
    undiluted = max(run, run_squares / max(1, plan.leftover_df))
    expected, expected_df = prior.session_sd**2, SUITE_DF
    if not prior.learnt:
        expected, expected_df = expected * max(1.0, undiluted / prior.run_sd**2), prior.df
    stored_df = plan.sessions - 1
    weight = stored_df / (expected_df + stored_df)
    from_runs = plan.levels_runs * run
    observed = max(from_runs, session_squares / max(1, stored_df))
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


#: (seed, value on the metric's scale); a larger value is worse.
SeededRun = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Shift:
    """A difference on the metric's scale; above 0 the new runs are worse.

    Args:
        level: mean of the new runs whose seed is stored.
        effect: the difference.
        se: standard error of the difference.
        df: Satterthwaite's degrees of freedom.
        run_sd, session_sd: estimated sds, with the prior included.
        differences: difference of each new run from the stored mean of its seed.
        sessions: number of stored sessions that share a seed with the new runs.
        stored_runs: number of runs in these stored sessions.
        prior: the prior of the estimate.
    """

    level: float
    effect: float
    se: float
    df: float
    run_sd: float
    session_sd: float
    differences: tuple[float, ...]
    sessions: int
    stored_runs: int
    prior: Prior

    def lower(self, confidence: float) -> float:
        return self.effect - t_quantile(confidence, self.df) * self.se

    def upper(self, confidence: float) -> float:
        return self.effect + t_quantile(confidence, self.df) * self.se

    def p_worse(self, by: float) -> float:
        """p of "worse by at most `by`": small where it is proven to be worse by more."""
        return float(special.stdtr(self.df, (by - self.effect) / self.se))

    def p_better(self, by: float) -> float:
        """p of "better by at most `by`"."""
        return self.negated().p_worse(by)

    def shown_by_most_runs(self, beyond: float) -> bool:
        """Whether nearly all new runs exceed the margin by at least half of the effect's excess over the margin.

        All of 3 runs, 4 of 5 runs or 6 of 8 runs are required, so that a few disturbed runs cannot decide the verdict.
        """
        half = (self.effect + beyond) / 2
        showing = sum(difference >= half for difference in self.differences)
        return showing >= len(self.differences) - len(self.differences) // 4

    def negated(self) -> Shift:
        """As seen from the good side."""
        return replace(self, effect=-self.effect, differences=tuple(-difference for difference in self.differences))


def shift(fresh: Sequence[SeededRun], stored: Sequence[Sequence[SeededRun]], prior: Prior) -> Shift:
    """Compare today's runs with stored sessions.

    Args:
        fresh: today's runs, all of one session; seeds may repeat.
        stored: the runs of each session. One that shares no seed with today's is left out.
        prior: of this metric.

    Raises:
        ValueError: no run today, or no stored session shares a seed with it.
    """
    from pytest_llmperf.stats.layout import layout

    seeds = {seed for seed, _ in fresh}
    paired = [session for session in stored if seeds & {seed for seed, _ in session}]
    if not fresh or not paired:
        raise ValueError(f"today's seeds {sorted(seeds)} are in none of the {len(stored)} stored sessions")
    plan = layout(tuple(seed for seed, _ in fresh), tuple(tuple(seed for seed, _ in session) for session in paired))
    values = np.array([value for session in (fresh, *paired) for _, value in session])
    estimated_spread = spread(plan, float(plan.run_squares(values)), float(plan.session_squares(values)), prior)
    stored_seeds = {seed for session in paired for seed, _ in session}
    return Shift(
        level=fmean(value for seed, value in fresh if seed in stored_seeds),
        effect=float(plan.differ(values)),
        se=estimated_spread.variance**0.5,
        df=estimated_spread.df,
        run_sd=estimated_spread.run**0.5,
        session_sd=estimated_spread.session**0.5,
        differences=_differences(fresh, paired),
        sessions=plan.sessions,
        stored_runs=len(values) - len(fresh),
        prior=prior,
    )


def sessions_by_host(stored: Sequence[Sequence[SeededRun]], hosts: Sequence[str], today: str) -> list[list[SeededRun]]:
    """The stored sessions if today's host is one of their hosts; else one pooled session per host.

    Ten sessions of one host give no information about the difference to a new host, so they count as one session.
    """
    if today in hosts:
        return [list(session) for session in stored]
    return [[run for session, host in zip(stored, hosts, strict=True) if host == each for run in session]
            for each in dict.fromkeys(hosts)]


def _differences(fresh: Sequence[SeededRun], stored: Sequence[Sequence[SeededRun]]) -> tuple[float, ...]:
    """Runs whose seed is stored nowhere have no pair and are left out."""
    stored_values: dict[int, list[float]] = {}
    for session in stored:
        for seed, value in session:
            stored_values.setdefault(seed, []).append(value)
    return tuple(value - fmean(stored_values[seed]) for seed, value in fresh if seed in stored_values)
