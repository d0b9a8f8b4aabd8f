"""Accuracy guards: how often a verdict about a loss of one point is wrong, and how many questions it takes.

    python scripts/simulate_verdicts.py accuracy --suites 2000
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from simulate_claims import heading, row

from pytest_llmperf.calibration.page import share
from pytest_llmperf.judging.accuracy import DIFFERENCE_CONFIDENCE
from pytest_llmperf.stats.binomial import share_interval
from pytest_llmperf.stats.paired_answers import p_above

Rule = Callable[[int, int, int], tuple[bool, bool]]
MARGIN, QUESTIONS = 0.01, (1000, 2000, 4000)
#: Shares of the questions that B alone answers right, where both sides are equally accurate.
DISCORDANT = (0.005, 0.02, 0.05)


@cache
def passes(only_a: int, only_b: int, questions: int) -> tuple[bool, bool]:
    """PASS by two exact shares, as before, and by the score test."""
    each = (1 + DIFFERENCE_CONFIDENCE) / 2
    alone_a, alone_b = (share_interval(count, questions, each) for count in (only_a, only_b))
    p = p_above(only_a, only_b, questions, -MARGIN)
    return alone_a.low - alone_b.high >= -MARGIN, p <= 1 - DIFFERENCE_CONFIDENCE


@cache
def fails(only_a: int, only_b: int, questions: int) -> tuple[bool, bool]:
    """FAIL by the two rules."""
    each = (1 + DIFFERENCE_CONFIDENCE) / 2
    alone_a, alone_b = (share_interval(count, questions, each) for count in (only_a, only_b))
    p = p_above(only_b, only_a, questions, MARGIN)
    return alone_a.high - alone_b.low < -MARGIN, p <= 1 - DIFFERENCE_CONFIDENCE


def accuracy_table(
    trials: int, rng: np.random.Generator, questions: tuple[int, ...] = QUESTIONS
) -> Iterator[str]:
    """Each cell: two exact shares → score test."""
    yield from heading(f"Loss of at most one point, {trials} pairs of sides: two exact shares → score test",
                       "answered right by B alone", "questions", "false PASS at a loss of one point",
                       "false FAIL at a loss of one point", "PASS without a loss", "FAIL at a loss of three points")
    for discordant in DISCORDANT:
        for count in questions:
            cells = [_counted(rule, loss, discordant, count, trials=trials, rng=rng)
                     for rule, loss in ((passes, MARGIN), (fails, MARGIN), (passes, 0.0), (fails, 3 * MARGIN))]
            yield row(f"{100 * discordant:g} %", count, *cells)


def _counted(rule: Rule, loss: float, discordant: float, questions: int, *, trials: int,
             rng: np.random.Generator) -> str:
    only_b = max(discordant, loss) if loss > discordant else discordant + loss / 2
    shares = (only_b - loss, only_b)
    outcomes = rng.multinomial(questions, [*shares, 1 - sum(shares)], size=trials)
    decided = [rule(int(a), int(b), questions) for a, b, _ in outcomes]
    return " → ".join(share(sum(pair[place] for pair in decided), trials) for place in (0, 1))


TABLES = {"accuracy": accuracy_table}
