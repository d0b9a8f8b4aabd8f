"""Confidence limits, and what follows when a limit of the user's lies beside them."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

from pytest_llmperf.model.verdict import Verdict

LARGEST_LOG_RATIO = 709.0  # of a float


def factor(log_ratio: float) -> float:
    """A log ratio as a ratio; infinite beyond the largest float, as the limits of few, very different runs may be."""
    return exp(log_ratio) if log_ratio <= LARGEST_LOG_RATIO else inf


@dataclass(frozen=True, slots=True)
class Interval:
    """Two one-sided limits, each at `confidence`: at 0.95 together a 90 % interval."""

    low: float
    high: float
    confidence: float

    @property
    def level_percent(self) -> float:
        """Two-sided confidence level of the interval in percent."""
        return round(100 * (2 * self.confidence - 1), 6)

    def below(self, limit: float) -> Verdict:
        """Whether the truth is at most `limit`: PASS or FAIL where proven, else INCONCLUSIVE."""
        if self.high <= limit:
            return Verdict.PASS
        return Verdict.FAIL if self.low > limit else Verdict.INCONCLUSIVE

    def above(self, limit: float) -> Verdict:
        """Whether the truth is at least `limit`."""
        if self.low >= limit:
            return Verdict.PASS
        return Verdict.FAIL if self.high < limit else Verdict.INCONCLUSIVE
