"""Verdicts about accuracies."""

import pytest

from pytest_llmperf.errors import UsageError
from pytest_llmperf.judging.accuracy import judge_accuracy, judge_loss
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.accuracy import Accuracy
from pytest_llmperf.results.causes.limits import AccuracyLost, QuestionsTooFew
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.sentences import basis_text, estimate_text, reason_text


def answers(wrong, questions=2000):
    return Accuracy("sums", "vllm", "exact_match", {str(i): i not in wrong for i in range(questions)})


B = answers(range(160))
FASTER = CheckResult("tpot_mean(b) / tpot_mean(a) >= 1.2", Verdict.PASS, "tpot_mean(b) / tpot_mean(a)", Unit.RATIO,
                     estimate=1.31)


@pytest.mark.parametrize(("wrong", "verdict", "cause"), [
    (range(160), Verdict.PASS, type(None)),
    (range(3, 163), Verdict.PASS, type(None)),
    (range(172), Verdict.INCONCLUSIVE, QuestionsTooFew),
    (range(600), Verdict.FAIL, AccuracyLost),
])
def test_loss_is_judged_on_paired_answers(wrong, verdict, cause):
    result = judge_loss(answers(wrong), B, 0.01, FASTER)
    assert (result.verdict, type(result.cause)) == (verdict, cause)


def test_faster_and_worse_side_fails_with_both_numbers(message):
    result = judge_loss(answers(range(600)), B, 0.01, FASTER)
    message(estimate_text(result))
    message(reason_text(result))
    message(basis_text(result))


def test_equal_answers_to_few_questions_are_inconclusive():
    few = answers((), 100)
    result = judge_loss(few, few, 0.01, None)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "about 536 questions decide" in reason_text(result)


def test_different_questions_are_refused():
    with pytest.raises(UsageError, match="different questions"):
        judge_loss(answers(()), answers((), 100), 0.01, None)


def test_accuracy_without_questions_is_refused():
    with pytest.raises(UsageError, match="sums has no question"):
        answers((), 0)


@pytest.mark.parametrize(("at_least", "verdict"), [
    (None, Verdict.REPORTED), (0.9, Verdict.PASS), (0.92, Verdict.INCONCLUSIVE), (0.95, Verdict.FAIL),
])
def test_share_of_right_answers_is_judged_by_exact_interval(at_least, verdict):
    result = judge_accuracy(B, at_least)
    assert result.verdict is verdict
    assert estimate_text(result) == "92 %"
    assert "1840 of 2000 questions answered right" in basis_text(result)
