"""Judges accuracies: against a limit, and one side's against the other's on the same questions."""

from __future__ import annotations

from dataclasses import replace

from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.accuracy import Accuracy
from pytest_llmperf.results.causes.limits import (
    AccuracyLost,
    AccuracyNotEmulated,
    AnswersAlike,
    AnswersDiffer,
    BeyondLimit,
    QuestionsTooFew,
)
from pytest_llmperf.results.check import Cause, CheckResult, Facts
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import share_interval
from pytest_llmperf.stats.paired_answers import difference_interval, mcnemar_p, needed_questions

#: Of each limit of an accuracy and of a difference, as for SLOs and for claims.
SHARE_CONFIDENCE = 0.95
DIFFERENCE_CONFIDENCE = 0.99
#: Tolerated loss of agreement, as a share of all prompts.
AGREEMENT_MARGIN = 0.05


def metric_of(task: str) -> str:
    """The name of a task's accuracy in results: "accuracy(sums)"."""
    return f"accuracy({task})"


def judge_accuracy(accuracy: Accuracy, at_least: float | None) -> CheckResult:
    """The share of right answers with its exact interval, held against a limit; REPORTED without a limit."""
    interval = share_interval(accuracy.correct, accuracy.questions, SHARE_CONFIDENCE)
    metric, facts = metric_of(accuracy.task), Facts(questions=accuracy.questions, correct=accuracy.correct)
    if at_least is None:
        return CheckResult(metric, Verdict.REPORTED, metric, Unit.SHARE, estimate=accuracy.share, interval=interval,
                           facts=facts)
    verdict = interval.above(at_least)
    causes: dict[Verdict, Cause] = {Verdict.FAIL: BeyondLimit(), Verdict.INCONCLUSIVE: QuestionsTooFew()}
    return CheckResult(f"{metric} >= {at_least:g}", verdict, metric, Unit.SHARE, Comparison.AT_LEAST, at_least,
                       accuracy.share, interval, causes.get(verdict), facts)


def judge_loss(a: Accuracy, b: Accuracy, margin: float, claimed: CheckResult | None) -> CheckResult:
    """Whether A answers as many questions right as B, except for at most `margin` of all questions.

    PASS only if the exact interval of the difference excludes a larger loss: unlike a guard on a latency, an undecided
    accuracy does not pass.

    Args:
        margin: tolerated loss, as a share of all questions: 0.01 is one point.
        claimed: result of the claim, which a FAIL names beside the loss; None without a result.

    Raises:
        UsageError: the two sides were asked different questions.
    """
    only_a, only_b, questions = a.alone(b), b.alone(a), a.questions
    interval = difference_interval(only_a, only_b, questions, DIFFERENCE_CONFIDENCE)
    verdict = interval.above(-margin)
    facts = Facts(questions=questions, only_a=only_a, only_b=only_b, p=mcnemar_p(only_a, only_b))
    cause: Cause | None = None
    if verdict is Verdict.INCONCLUSIVE:
        cause = QuestionsTooFew(needed_questions(only_a, only_b, questions, -margin, DIFFERENCE_CONFIDENCE))
    elif verdict is Verdict.FAIL:
        cause = AccuracyLost()
        if claimed is not None and claimed.estimate is not None:
            cause = AccuracyLost(claimed.metric, claimed.estimate, claimed.verdict is Verdict.PASS)
    metric = metric_of(a.task)
    return CheckResult(f"{metric} of A and B", verdict, metric, Unit.POINTS, Comparison.AT_LEAST, -margin,
                       a.share - b.share, interval, cause, facts, before=b.share, after=a.share)


def judge_agreement(
    deployment: Accuracy, floor: Accuracy, *, different: int, first_difference: AnswersDiffer | None
) -> CheckResult:
    """Whether a deployment answers like one server, except for at most 5 points of all prompts.

    Args:
        deployment: prompt → whether both answers of the deployment equal the first answer of the one server.
        floor: prompt → whether the further answers of the one server equal its first answer.
        different: number of different answers of the one server.
        first_difference: where the deployment first differs; None without a difference.
    """
    result = judge_loss(deployment, floor, AGREEMENT_MARGIN, None)
    cause = result.cause
    verdict = result.verdict
    if verdict is Verdict.FAIL and first_difference is not None:
        cause = first_difference
    elif 2 * different < floor.questions:
        verdict, cause = Verdict.INCONCLUSIVE, AnswersAlike(different, floor.questions)
    return replace(result, subject="agreement of the first tokens", metric="agreement", verdict=verdict, cause=cause)


def judge_recall(deployment: Accuracy, single: Accuracy) -> CheckResult:
    """Whether a deployment repeats the nonces of the prompts as one server does, except for at most 5 points."""
    result = judge_loss(deployment, single, AGREEMENT_MARGIN, None)
    return replace(result, subject="recall of the nonces", metric="recall")


def not_emulated(task: str) -> CheckResult:
    """The result where an emulator stands for the engine: its answers are invented."""
    metric = metric_of(task)
    return CheckResult(metric, Verdict.REPORTED, metric, cause=AccuracyNotEmulated())
