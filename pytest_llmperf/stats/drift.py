"""Detects a drift of successive runs, for instance of a server that still warms up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf, sqrt

from pytest_llmperf.stats.mean import mean


@dataclass(frozen=True, slots=True)
class Drift:
    """A straight line through successive runs.

    Args:
        total: rise of the line from the first run to the last run, on the scale of the values; negative for a fall.
        p: two-sided p value under no drift.
    """

    total: float
    p: float

    def steady(self, tolerated: float, alpha: float = 0.001) -> bool:
        """False where the runs are proven to drift, and by more than `tolerated` in all."""
        return abs(self.total) <= tolerated or self.p > alpha


def drift(values: Sequence[float], sd: float, df: float = inf) -> Drift:
    """Least squares through equidistant runs, whose noise is known from elsewhere.

    Args:
        values: value of each run in the order of time, on a scale with additive errors. Differences from a baseline of
            the same seeds are best; for other values `sd` must include the sd between seeds.
        sd: sd of one value.
        df: degrees of freedom of `sd`.

    Raises:
        ValueError: fewer than three runs, or no sd above 0.
    """
    from scipy.special import stdtr

    if len(values) < 3 or sd <= 0:
        raise ValueError(f"{len(values)} runs with an sd of {sd:g} show no drift, 3 are needed")
    middle = (len(values) - 1) / 2
    squares = fsum((i - middle) ** 2 for i in range(len(values)))
    centre = mean(values)
    slope = fsum((i - middle) * (value - centre) for i, value in enumerate(values)) / squares
    return Drift(slope * (len(values) - 1), 2 * float(stdtr(df, -abs(slope) * sqrt(squares) / sd)))
