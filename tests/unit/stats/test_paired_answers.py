"""The exact test and the exact interval of two accuracies on the same questions."""

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar

from pytest_llmperf.stats.paired_answers import difference_interval, mcnemar_p, needed_questions, p_above


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_p_equals_exact_test_of_statsmodels(only_a, only_b):
    expected = mcnemar([[5, only_a], [only_b, 5]], exact=True).pvalue if only_a + only_b else 1.0
    assert mcnemar_p(only_a, only_b) == pytest.approx(min(1.0, expected))


@pytest.mark.parametrize(("share_a", "share_b"), [(0.1, 0.1), (0.3, 0.05), (0.02, 0.5)])
def test_true_difference_is_excluded_at_most_as_often_as_stated(share_a, share_b):
    """All outcomes of 8 questions, each with its probability."""
    questions, excluded_below, excluded_above, truth = 8, 0.0, 0.0, share_a - share_b
    for only_a, only_b in product(range(questions + 1), repeat=2):
        rest = questions - only_a - only_b
        if rest < 0:
            continue
        ways = comb(questions, only_a) * comb(questions - only_a, only_b)
        probability = ways * share_a**only_a * share_b**only_b * (1 - share_a - share_b) ** rest
        excluded_below += probability * (p_above(only_a, only_b, questions, truth) <= 0.1)
        excluded_above += probability * (p_above(only_b, only_a, questions, -truth) <= 0.1)
    assert 0.01 < max(excluded_below, excluded_above) <= 0.1


def test_p_value_is_the_exact_probability_at_the_worst_share():
    """Of 5 questions: the outcomes with a score of at least the observed one, enumerated."""
    from pytest_llmperf.stats.paired_answers import _score, _shares

    observed, questions, difference = (2, 1), 5, -0.2
    scores = {(a, b): float(_score(np.array([a]), np.array([b]), questions, difference)[0])
              for a, b in product(range(6), repeat=2) if a + b <= questions}
    worst = max(sum(comb(questions, a) * comb(questions - a, b) * (share + difference) ** a * share**b
                    * max(0.0, 1 - 2 * share - difference) ** (questions - a - b)
                    for (a, b), score in scores.items() if score >= scores[observed] - 1e-9)
                for share in _shares(difference))
    assert p_above(*observed, questions, difference) == pytest.approx(worst)


def test_interval_is_where_the_exact_test_stops_excluding():
    interval = difference_interval(3, 9, 300, 0.95)
    assert p_above(3, 9, 300, interval.low - 1e-4) <= 0.05 < p_above(3, 9, 300, interval.low + 1e-4)
    assert p_above(9, 3, 300, -interval.high - 1e-4) <= 0.05 < p_above(9, 3, 300, -interval.high + 1e-4)


def test_equal_answers_exclude_a_loss_of_one_point_from_542_questions():
    assert p_above(0, 0, 542, -0.01) <= 0.01 < p_above(0, 0, 541, -0.01)


def test_score_test_decides_with_fewer_questions_than_two_exact_shares():
    """Two exact limits, of A alone and of B alone, need 5,200 questions at these shares."""
    assert p_above(46, 46, 2300, -0.01) <= 0.01


def test_needed_questions_decide_and_are_unknown_at_the_limit():
    needed = needed_questions(2, 3, 200, -0.01, 0.99)
    factor = needed / 200
    assert p_above(round(2.1 * factor), round(2.9 * factor), needed, -0.01) <= 0.01
    assert needed_questions(0, 10, 1000, -0.01, 0.99) is None
