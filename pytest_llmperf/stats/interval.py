"""Confidence limits of means over few runs or over batches of one run, and of shares, with exact binomial tests.

Tails come from the regularised incomplete beta function (Abramowitz and Stegun 26.5.24), which accepts the fractional
numbers that an effective sample size brings. Confidence limits come from its inverse (Clopper and Pearson, 1934).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import cbrt, exp, fsum, inf, log, sqrt
from statistics import NormalDist

from pytest_llmperf.lazy import special
from pytest_llmperf.model.verdict import Verdict

LARGEST_LOG_RATIO = 709.0  # of a float
_LEAST_SHARE = 1e-30  # a run file holds no smaller number


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


def mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def sd(values: Sequence[float]) -> float:
    """Sample standard deviation, n − 1 in the denominator.

    Raises:
        ValueError: fewer than two values.
    """
    if len(values) < 2:
        raise ValueError("a standard deviation needs two values")
    centre = mean(values)
    return sqrt(fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


@lru_cache(maxsize=1024)
def t_quantile(probability: float, df: float | None) -> float:
    """Quantile of Student's t distribution with `df` degrees of freedom; None stands for the normal distribution."""
    return NormalDist().inv_cdf(probability) if df is None else float(special.stdtrit(df, probability))


def t_interval(values: Sequence[float], confidence: float, *, on_log: bool = False,
               centre: float | None = None) -> Interval:
    """Student's interval of a mean.

    Args:
        values: two or more independent ones: a run's each, or a batch's.
        confidence: of each limit, one-sided.
        on_log: take the spread of the logarithms, for values above 0 whose errors multiply (latencies).
        centre: the estimate to put the limits around where it is not the mean of `values`.

    Raises:
        ValueError: fewer than two values.
    """
    middle = mean(values) if centre is None else centre
    spread = sd([log(value) for value in values] if on_log else values) / sqrt(len(values))
    half_width = t_quantile(confidence, len(values) - 1) * spread
    if on_log:
        return Interval(middle * factor(-half_width), middle * factor(half_width), confidence)
    return Interval(middle - half_width, middle + half_width, confidence)


def skewed_interval(centre: float, error: float, skewness: float, confidence: float, df: int) -> Interval:
    """Student's interval, with the upper limit of Hall (1992, Annals of Statistics 20) for an estimate that is skewed.

    Latencies behind a queue are skewed to the right. A mean of few slow spells is then too low and looks too precise
    at the same time, and Student's upper limit lies below the truth too often.

    Args:
        centre: the estimate.
        error: standard error of the estimate.
        skewness: of the estimate, 0 or more.
        confidence: of each limit, one-sided.
        df: degrees of freedom of the standard error.
    """
    quantile = t_quantile(confidence, df)
    above = quantile
    if skewness > 0:
        above = 3 / skewness * (1 + cbrt(skewness * (quantile + skewness / 6) - 1))
    return Interval(centre - quantile * error, centre + max(quantile, above) * error, confidence)


def wider(first: Interval, second: Interval) -> Interval:
    """The more careful limits of two intervals around one estimate."""
    return Interval(min(first.low, second.low), max(first.high, second.high), first.confidence)


def at_most(x: float, n: float, share: float) -> float:
    """P(X ≤ x) for X ~ Binomial(n, share); x and n need not be whole."""
    if x < 0:
        return 0.0
    return 1.0 if x >= n else float(special.betainc(n - x, x + 1, 1 - share))


def at_least(x: float, n: float, share: float) -> float:
    """P(X ≥ x) for X ~ Binomial(n, share); x and n need not be whole."""
    if x <= 0:
        return 1.0
    return 0.0 if x > n else float(special.betainc(x, n - x + 1, share))


def pass_limit(n: int, share: float, confidence: float, effective_fraction: float = 1.0) -> int | None:
    """Largest count out of n that proves the true share to be at most `share`; None if not even 0 does.

    Args:
        n: observations.
        share: the share in question, 0…1.
        confidence: of the one-sided test.
        effective_fraction: effective observations per observation, at most 1.
    """
    return _last_true(-1, n, lambda x: at_most(x * effective_fraction, n * effective_fraction, share) <= 1 - confidence)


def fail_limit(n: int, share: float, confidence: float, effective_fraction: float = 1.0) -> int | None:
    """Smallest count out of n that proves the true share to be above `share`; None if not even n does."""
    last = _last_true(-1, n, lambda x: at_least(x * effective_fraction, n * effective_fraction, share) > 1 - confidence)
    return None if last is None or last >= n else last + 1


def share_interval(x: float, n: float, confidence: float) -> Interval:
    """Clopper–Pearson limits of a share, each one-sided at `confidence`.

    Raises:
        ValueError: no observations.
    """
    if n <= 0:
        raise ValueError("no observations")
    low = 0.0 if x <= 0 else float(special.betaincinv(x, n - x + 1, 1 - confidence))
    low = low if low >= _LEAST_SHARE else 0.0
    high = 1.0 if x >= n else float(special.betaincinv(x + 1, n - x, confidence))
    return Interval(low, high, confidence)


def _last_true(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """Largest whole number of low + 1 … high that `holds`, which holds up to some number and not beyond."""
    start = low
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low if low > start else None
