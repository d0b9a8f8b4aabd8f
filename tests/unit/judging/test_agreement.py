"""Agreement of a deployment with one server: no alarm for equal servers, and a FAIL for a proven loss."""

from random import Random

import pytest

from pytest_llmperf.judging.accuracy import judge_agreement
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.accuracy import Accuracy
from pytest_llmperf.results.causes.limits import AnswersAlike, AnswersDiffer

FIRST = AnswersDiffer(1, 1)


def judged(deployment, floor, different=200, first_difference=FIRST):
    sides = [Accuracy("agreement", name, "first tokens", {str(number): right for number, right in enumerate(rights)})
             for name, rights in (("fleet", deployment), ("one", floor))]
    return judge_agreement(*sides, different=different, first_difference=first_difference)


def equal_pairs():
    """200 pairs of two equal servers, each right on 97 % of 400 prompts; the pair with the largest loss is first."""
    rng = Random(47)
    pairs = [tuple([rng.random() > 0.03 for _ in range(400)] for _ in range(2)) for _ in range(200)]
    return sorted(pairs, key=lambda pair: sum(pair[0]) - sum(pair[1]))


def test_equal_pairs_with_the_largest_losses_raise_no_false_alarm():
    verdicts = [judged(*pair).verdict for pair in (*equal_pairs()[:3], equal_pairs()[19])]
    assert Verdict.FAIL not in verdicts
    assert verdicts[-1] is Verdict.PASS


@pytest.mark.thorough
def test_200_equal_pairs_give_no_alarm():
    verdicts = [judged(*pair).verdict for pair in equal_pairs()]
    assert Verdict.FAIL not in verdicts
    assert verdicts.count(Verdict.PASS) > 180


def test_loss_of_15_points_fails_and_names_the_first_difference():
    place = AnswersDiffer(8, 3, 1.25)
    result = judged([number % 7 > 0 for number in range(200)], [True] * 200, first_difference=place)
    assert (result.verdict, result.cause) == (Verdict.FAIL, place)


def test_loss_near_the_margin_is_inconclusive():
    assert judged([number >= 12 for number in range(200)], [True] * 200).verdict is Verdict.INCONCLUSIVE


def test_server_with_few_different_answers_decides_nothing():
    result = judged([True] * 200, [True] * 200, different=3)
    assert (result.verdict, result.cause) == (Verdict.INCONCLUSIVE, AnswersAlike(3, 200))
