"""Two sides answer the same questions: exact test and interval for the difference of their accuracies."""

from __future__ import annotations

from pytest_llmperf.stats.binomial import at_most, share_interval
from pytest_llmperf.stats.interval import Interval

_MOST_QUESTIONS = 1_000_000


def mcnemar_p(only_a: int, only_b: int) -> float:
    """Two-sided exact p value of McNemar's test: equal accuracies split the discordant questions evenly.

    Args:
        only_a, only_b: questions that A alone, and that B alone, answers right.

    >>> mcnemar_p(0, 5)
    0.0625
    """
    return min(1.0, 2 * at_most(min(only_a, only_b), only_a + only_b, 0.5))


def difference_interval(only_a: int, only_b: int, questions: int, confidence: float) -> Interval:
    """Limits of the accuracy of A minus the accuracy of B, each one-sided at `confidence`.

    The difference is the share of questions that A alone answers right, minus the share of B alone. Each share has
    exact limits (Clopper and Pearson) at half of the error. So the limits hold for every number of questions, also
    where no question is discordant.
    """
    each = (1 + confidence) / 2
    alone_a, alone_b = (share_interval(count, questions, each) for count in (only_a, only_b))
    return Interval(alone_a.low - alone_b.high, alone_a.high - alone_b.low, confidence)


def needed_questions(only_a: int, only_b: int, questions: int, lowest: float, confidence: float) -> int | None:
    """How many questions decide whether the difference is at least `lowest`, if the shares stay as they are.

    None if a million do not.
    """
    factor = 2
    while factor * questions <= _MOST_QUESTIONS:
        interval = difference_interval(factor * only_a, factor * only_b, factor * questions, confidence)
        if interval.low >= lowest or interval.high < lowest:
            return factor * questions
        factor += max(1, factor // 4)
    return None
