"""Judges the start time of a server."""

from __future__ import annotations

from math import exp, log, sqrt

from pytest_llmperf.judging.outcome import requirement_result, unavailable_result
from pytest_llmperf.judging.ratios import start_sd_prior
from pytest_llmperf.judging.sample import Sample
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.limits import BeyondLimit, LimitInInterval
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.slo.model import Comparison, Slo
from pytest_llmperf.stats.interval import Interval
from pytest_llmperf.stats.mean import mean, t_quantile

STARTUP = "startup_s"


def judge_startup(slo: Slo, sample: Sample, confidence: float) -> CheckResult:
    """All runs of a start have its one start-up time, and starts are few: how much they differ is assumed."""
    by_start = [group[0] for group in sample.by_start(sample.values(slo))]
    times_s = [value for value in by_start if value is not None]
    if len(times_s) < len(by_start) or min(times_s) <= 0:
        return unavailable_result(slo, len(by_start) - len(times_s), len(by_start))
    assumed = start_sd_prior(find(STARTUP))
    middle = exp(mean([log(value) for value in times_s]))
    margin = exp(t_quantile(confidence, None) * assumed.value / sqrt(len(times_s)))
    interval = Interval(middle / margin, middle * margin, confidence)
    verdict = (interval.below if slo.comparison is Comparison.AT_MOST else interval.above)(slo.limit)
    return requirement_result(
        slo, verdict, BeyondLimit() if verdict is Verdict.FAIL else LimitInInterval(), estimate=middle,
        interval=interval,
        facts={"starts": len(times_s), "start_sd": assumed.value, "start_sd_source": assumed.source},
    )
