"""Intervals of means over few runs, or over batches of one run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import cbrt, fsum, log, sqrt
from statistics import NormalDist

from pytest_llmperf.lazy import special
from pytest_llmperf.stats.interval import Interval, factor


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
