"""Judges the highest rates within an SLO that searches found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log, sqrt

from pytest_llmperf.judging.outcome import requirement_result, unavailable_result
from pytest_llmperf.judging.sample import Sample
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.limits import BeyondLimit, LimitInInterval, RateRefuted, RateUndecided
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.slo.model import Comparison, Slo
from pytest_llmperf.stats.interval import Interval, factor, mean, sd, t_quantile

SEARCHED = ("max_rate", "max_conversation_rate")


def judge_searched(slo: Slo, sample: Sample, confidence: float) -> CheckResult:
    """Judges searches with one seed by the rates that they proved, and searches with several seeds by an interval.

    A search ends between two tried rates, so several searches can give equal results although the true limit is
    anywhere between these rates. So each result has at least the sd of a uniform distribution over the step,
    step ÷ √12.
    """
    rates = [value for value in sample.values(slo) if value is not None]
    missing = len(sample.runs) - len(rates)
    if missing or min(rates) <= 0:
        return unavailable_result(slo, missing, len(sample.runs))
    if len(set(sample.seeds)) == 1:
        return _judge_single_seed(slo, sample, rates)
    beyond = [run.value(f"{slo.metric}_beyond") or inf for run in sample.runs]
    logs, tops = ([log(rate) for rate in each] for each in (rates, beyond))
    middle, top = mean(logs), mean(tops)
    step = max((high - low for low, high in zip(logs, tops, strict=True) if high < inf), default=0.0)
    half_width = max(
        _half_width(groups, step / sqrt(12), confidence) for groups in (sample.by_seed(logs), sample.by_start(logs))
    )
    interval = Interval(factor(middle - half_width), factor(top + half_width), confidence)
    verdict = (interval.below if slo.comparison is Comparison.AT_MOST else interval.above)(slo.limit)
    return requirement_result(
        slo, verdict, BeyondLimit() if verdict is Verdict.FAIL else LimitInInterval(), estimate=mean(rates),
        interval=interval, facts=sample.facts,
    )


def _half_width(groups: Sequence[Sequence[float]], least_sd: float, confidence: float) -> float:
    """One-sided half-width of the confidence interval of the mean over groups; 0 for a single group.

    Args:
        least_sd: lower bound of the sd between the means of groups.
    """
    means = [mean(group) for group in groups]
    if len(means) < 2:
        return 0.0
    return t_quantile(confidence, len(means) - 1) * max(sd(means), least_sd) / sqrt(len(means))


def _judge_single_seed(slo: Slo, sample: Sample, rates: Sequence[float]) -> CheckResult:
    """Judges searches with a single seed. Each search has proven that some rates are within the SLO, and refuted other
    rates. PASS if the limit is at most the rate that every search proved, FAIL if the limit is at least the rate that
    every search refuted."""
    proven, refuted = (
        _worst_of_searches(sample, f"{slo.metric}_proven", min),
        _worst_of_searches(sample, f"{slo.metric}_refuted", max),
    )
    is_proven = proven is not None and proven >= slo.limit
    is_refuted = refuted is not None and refuted <= slo.limit
    if slo.comparison is Comparison.AT_MOST:
        is_proven, is_refuted = is_refuted, is_proven
    verdict = Verdict.PASS if is_proven else Verdict.FAIL if is_refuted else Verdict.INCONCLUSIVE
    facts = sample.facts
    if proven:
        facts["proven_rate"] = proven
    if refuted:
        facts["refuted_rate"] = refuted
    cause = RateRefuted() if verdict is Verdict.FAIL else RateUndecided()
    return requirement_result(slo, verdict, cause, estimate=mean(rates), facts=facts)


def _worst_of_searches(sample: Sample, metric: str, worst: Callable[[list[float]], float]) -> float | None:
    """The worst value of a metric over the searches; None if a search lacks the metric."""
    available_values = [value for run in sample.runs if (value := run.value(metric)) is not None]
    return worst(available_values) if len(available_values) == len(sample.runs) else None
