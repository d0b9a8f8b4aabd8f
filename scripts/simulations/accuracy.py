"""Accuracy guards: how often a verdict about a loss of one point is wrong, and how many questions it takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np

from pytest_llmperf.judging.accuracy import DIFFERENCE_CONFIDENCE
from pytest_llmperf.stats.paired_answers import p_above
from simulations.tables import Table, heading, percent, row, share_of

MARGIN = 0.01
#: Heading of a column → true loss, and whether the column counts FAIL.
COLUMNS = {"false PASS at a loss of one point": (MARGIN, False), "false FAIL at a loss of one point": (MARGIN, True),
           "PASS without a loss": (0.0, False), "FAIL at a loss of three points": (3 * MARGIN, True)}


@cache
def decided(only_a: int, only_b: int, questions: int, *, fails: bool) -> bool:
    """Whether the guard fails, or passes."""
    p = p_above(only_b, only_a, questions, MARGIN) if fails else p_above(only_a, only_b, questions, -MARGIN)
    return p <= 1 - DIFFERENCE_CONFIDENCE


def accuracy_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading(f"Loss of at most one point, {trials} pairs of sides", "answered right by B alone", "questions",
                       *COLUMNS)
    for discordant, questions in product((0.005, 0.02, 0.05), (1000, 2000, 4000)):
        cells = []
        for loss, fails in COLUMNS.values():
            only_b = max(discordant, loss) if loss > discordant else discordant + loss / 2
            shares = (only_b - loss, only_b)
            answers = rng.multinomial(questions, [*shares, 1 - sum(shares)], size=trials)
            cells.append(share_of(decided(int(a), int(b), questions, fails=fails) for a, b, _ in answers))
        yield row(percent(discordant), questions, *cells)


TABLES: dict[str, Table] = {"accuracy": accuracy_table}
