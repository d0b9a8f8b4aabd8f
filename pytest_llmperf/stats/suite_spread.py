"""How much the stored sessions of a whole suite differ, and what a metric's prior becomes once they show it.

One test has few stored sessions, and a suite has many tests. Each metric's mean square between sessions, divided by the
prior variance between sessions, estimates how many times noisier the sessions are than the prior assumes. The pooled
ratio of the metric's kind scales the prior, or the ratio of the whole suite if the kind shows too little. Error rates:
`scripts/simulate_verdicts.py young` and docs/evidence/baseline_comparisons.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance

from pytest_llmperf.stats.prior import Prior
from pytest_llmperf.stats.priors import Kind

#: Degrees of freedom between sessions from which a pool is used, and the weight of the prior in a pool that is quieter.
ENOUGH_DF = 8


@dataclass(frozen=True, slots=True)
class SuiteSpread:
    """Spread between the stored sessions of a suite.

    Args:
        squares: kind of metric → sum of squares between sessions, in units of the prior variance between sessions.
        dfs: degrees of freedom of each sum.
    """

    squares: Mapping[Kind, float]
    dfs: Mapping[Kind, int]

    @classmethod
    def of(cls, metrics: Iterable[tuple[Kind, Prior, Sequence[float]]]) -> SuiteSpread:
        """The spread of a suite from the level of each stored session, metric by metric."""
        squares, dfs = dict.fromkeys(Kind, 0.0), dict.fromkeys(Kind, 0)
        for kind, prior, levels in metrics:
            if len(levels) > 1:
                squares[kind] += (len(levels) - 1) * variance(levels) / prior.session_sd**2
                dfs[kind] += len(levels) - 1
        return cls(squares, dfs)

    @property
    def df(self) -> int:
        return sum(self.dfs.values())

    def learnt(self, prior: Prior, kind: Kind) -> Prior:
        """The prior with the session sd that the suite shows; unchanged while the suite shows too little."""
        squares, df = self.squares.get(kind, 0.0), self.dfs.get(kind, 0)
        if df < ENOUGH_DF:
            squares, df = sum(self.squares.values()), self.df
        if df < ENOUGH_DF:
            return prior
        return replace(prior, session_sd=prior.session_sd * variance_ratio(squares, df, max) ** 0.5, learnt=True,
                       source="from the stored sessions of the suite")


def deciding_sessions(suite_primaries: int) -> int:
    """Stored sessions of each test from which the spread of the suite is known."""
    return 1 + -(-ENOUGH_DF // suite_primaries)


def variance_ratio(squares: float, df: int, larger: Callable[[float, float], float]) -> float:
    """Variance between sessions as a multiple of the prior's. A pool below the prior is shrunk towards the prior.

    Args:
        squares, df: of the pool.
        larger: maximum of two; with numpy's, this works on arrays as well.
    """
    return larger(squares / df, (squares + ENOUGH_DF) / (df + ENOUGH_DF))


def session_levels(sessions: Sequence[Sequence[tuple[int, float]]]) -> list[float]:
    """Level of each session over the seeds that all sessions have; empty without such a seed.

    Args:
        sessions: (seed, value) of each run, session by session.
    """
    seeds = set.intersection(*({seed for seed, _ in session} for session in sessions)) if sessions else set()
    return [
        fmean(fmean(value for seed, value in session if seed == each) for each in sorted(seeds)) for session in sessions
    ] if seeds else []
