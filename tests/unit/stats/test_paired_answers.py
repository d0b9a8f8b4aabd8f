"""The exact test and the exact interval of two accuracies on the same questions."""

from itertools import product
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar

from pytest_llmperf.stats.paired_answers import difference_interval, mcnemar_p, needed_questions


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_p_equals_exact_test_of_statsmodels(only_a, only_b):
    expected = mcnemar([[5, only_a], [only_b, 5]], exact=True).pvalue if only_a + only_b else 1.0
    assert mcnemar_p(only_a, only_b) == pytest.approx(min(1.0, expected))


@pytest.mark.parametrize(("share_a", "share_b"), [(0.0, 0.0), (0.1, 0.1), (0.3, 0.05), (0.02, 0.5)])
def test_interval_misses_true_difference_at_most_as_often_as_stated(share_a, share_b):
    """All outcomes of 20 questions, each with its probability."""
    questions, missed_below, missed_above = 20, 0.0, 0.0
    for only_a, only_b in product(range(questions + 1), repeat=2):
        rest = questions - only_a - only_b
        if rest < 0:
            continue
        ways = comb(questions, only_a) * comb(questions - only_a, only_b)
        probability = ways * share_a**only_a * share_b**only_b * (1 - share_a - share_b) ** rest
        interval = difference_interval(only_a, only_b, questions, 0.95)
        missed_below += probability * (interval.low > share_a - share_b)
        missed_above += probability * (interval.high < share_a - share_b)
    assert max(missed_below, missed_above) <= 0.05


def test_equal_answers_exclude_a_loss_of_one_point_from_528_questions():
    assert difference_interval(0, 0, 528, 0.99).low >= -0.01
    assert difference_interval(0, 0, 527, 0.99).low < -0.01


def test_needed_questions_decide_and_are_unknown_at_the_limit():
    needed = needed_questions(2, 3, 200, -0.01, 0.99)
    factor = needed // 200
    assert difference_interval(2 * factor, 3 * factor, needed, 0.99).low >= -0.01
    assert needed_questions(0, 10, 1000, -0.01, 0.99) is None
