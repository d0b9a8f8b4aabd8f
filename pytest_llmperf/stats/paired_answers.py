"""Two sides answer the same questions: exact test and interval for the difference of their accuracies.

The interval inverts an exact unconditional test that orders the outcomes by the score statistic of Tango (1998,
Statistics in Medicine 17). Only the discordant questions count: those that A alone, or B alone, answers right.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil, sqrt
from typing import TYPE_CHECKING

from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.lazy import special
from pytest_llmperf.stats.interval import Interval, at_most, t_quantile

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

_MOST_QUESTIONS = 1_000_000
#: Shares of questions that B alone answers right, at which the exact test is evaluated.
_SHARES = 40
#: Standard deviations of a binomial beyond which its probabilities do not matter.
_TAIL_SDS = 9
_PRECISION = 1e-5


def mcnemar_p(only_a: int, only_b: int) -> float:
    """Two-sided exact p value of McNemar's test: equal accuracies split the discordant questions evenly.

    Args:
        only_a, only_b: questions that A alone, and that B alone, answers right.

    >>> mcnemar_p(0, 5)
    0.0625
    """
    return min(1.0, 2 * at_most(min(only_a, only_b), only_a + only_b, 0.5))


@lru_cache(maxsize=256)
def difference_interval(only_a: int, only_b: int, questions: int, confidence: float) -> Interval:
    """Limits of the accuracy of A minus the accuracy of B, each one-sided at `confidence`."""
    estimate, alpha = (only_a - only_b) / questions, 1 - confidence
    low = _root(-1.0, estimate, lambda least: p_above(only_a, only_b, questions, least) <= alpha)
    high = -_root(-1.0, -estimate, lambda least: p_above(only_b, only_a, questions, least) <= alpha)
    return Interval(low, high, confidence)


def p_above(only_a: int, only_b: int, questions: int, difference: float) -> float:
    """Exact p value against "the accuracy of A minus the accuracy of B is at most `difference`".

    The probability of an outcome with a score of at least the observed score, at the most unfavourable share of
    discordant questions.
    """
    if difference <= -1:
        return 0.0
    least = _score(np.array([only_a]), np.array([only_b]), questions, difference)[0]
    worst = 0.0
    for share_b in _shares(difference):
        share_a, sd = share_b + difference, sqrt(questions * share_b * (1 - share_b))
        first = max(0, int(questions * share_b - _TAIL_SDS * sd) - 1)
        counts_b = np.arange(first, min(questions, ceil(questions * share_b + _TAIL_SDS * sd) + 1) + 1)
        counts_a = _fewest(counts_b, questions, difference, least)
        possible, rest = counts_a <= questions - counts_b, np.maximum(questions - counts_b, 1)
        of_rest = np.minimum(share_a / (1 - share_b), 1.0) if share_b < 1 else 0.0
        tails = special.betainc(np.maximum(counts_a, 1), np.maximum(rest - counts_a + 1, 1e-9), of_rest)
        tails = np.where(possible, np.where(counts_a <= 0, 1.0, tails), 0.0)
        cumulative = special.bdtr(np.concatenate([[first - 1], counts_b]).astype(float), questions, share_b)
        worst = max(worst, float(np.diff(np.nan_to_num(cumulative)) @ tails))
    return worst


def needed_questions(only_a: int, only_b: int, questions: int, lowest: float, confidence: float) -> int | None:
    """Estimated number of questions that decide whether the difference is at least `lowest`, at unchanged shares.

    None if a million questions do not decide it.
    """
    score = float(_score(np.array([only_a]), np.array([only_b]), questions, lowest)[0])
    factor = (t_quantile(confidence, None) / score) ** 2 if score else float("inf")
    return max(questions + 1, ceil(factor * questions)) if factor * questions <= _MOST_QUESTIONS else None


def _score(only_a: Array, only_b: Array, questions: int, difference: float) -> Array:
    """Tango's statistic: large where A is better than `difference` says."""
    linear = (2 * questions - only_a + only_b) * difference - only_a - only_b
    root = np.sqrt(np.maximum(linear**2 + 8 * questions * only_b * difference * (1 - difference), 0))
    share_b = (root - linear) / (4 * questions)
    variance = questions * (2 * share_b + difference * (1 - difference))
    beyond: Array = only_a - only_b - questions * difference
    return beyond / np.sqrt(np.maximum(variance, 1e-12))


def _fewest(only_b: Array, questions: int, difference: float, least: float) -> Array:
    """Smallest count of A alone whose score is at least `least`, for each count of B alone: the score rises with it."""
    low, high = np.full(len(only_b), -1), questions - only_b + 1
    while (high - low > 1).any():
        middle = (low + high) // 2
        reached = _score(middle, only_b, questions, difference) >= least - 1e-9
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high


def _shares(difference: float) -> Array:
    """Shares of questions that B alone answers right, close together where they are small."""
    low, high = max(0.0, -difference), (1 - difference) / 2
    return low + (high - low) * np.linspace(0, 1, _SHARES) ** 3


def _root(low: float, high: float, excluded: Callable[[float], bool]) -> float:
    """The largest excluded difference between `low` and `high`, by bisection; `excluded` is true below it."""
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if excluded(middle) else (low, middle)
    return low
