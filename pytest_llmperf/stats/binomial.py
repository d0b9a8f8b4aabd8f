"""Exact one-sided binomial tests, also for the fractional counts that an effective sample size brings.

Tails come from the regularised incomplete beta function (Abramowitz and Stegun 26.5.24), which accepts
fractional numbers. Confidence limits come from its inverse (Clopper and Pearson, 1934).
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_llmperf.lazy import special
from pytest_llmperf.stats.interval import Interval

_LEAST_SHARE = 1e-30  # a run file holds no smaller number


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
