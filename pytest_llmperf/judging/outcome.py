"""From a judged requirement to its result: the metric's unit, the data behind the verdict, and the cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp

from pytest_llmperf.judging.sample import Sample
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.limits import (
    MetricUnavailable,
    ObservationsTooFew,
    RequestsConcurrent,
    RequestsDependent,
    RunsMissLimit,
    ShareNearLimit,
    ShareTooLarge,
    StartsDiffer,
)
from pytest_llmperf.results.check import Cause, CheckResult, Facts
from pytest_llmperf.results.conditions import unseen_gpu
from pytest_llmperf.slo.model import Comparison, Mechanism, Slo, metric_text
from pytest_llmperf.stats.exceedance import Exceedance
from pytest_llmperf.stats.interval import Interval


def requirement_result(requirement: Slo | Mechanism, verdict: Verdict, cause: Cause | None = None, *,
                       estimate: float | None = None, interval: Interval | None = None,
                       facts: Facts | None = None) -> CheckResult:
    """A result in the unit of the requirement's metric. A PASS has no cause and keeps the facts of the cause."""
    return without_cause(CheckResult(
        subject=requirement.text or str(requirement),
        verdict=verdict,
        metric=metric_label(requirement),
        unit=find(requirement.metric).unit,
        comparison=requirement.comparison,
        limit=requirement.limit,
        estimate=estimate,
        interval=interval,
        cause=cause,
        facts=facts or {},
    ))


def without_cause(result: CheckResult) -> CheckResult:
    """A PASS without its cause and with the facts of the cause; any other result unchanged."""
    return replace(result, cause=None, facts=result.numbers) if result.verdict is Verdict.PASS else result


def each_run_result(requirement: Slo | Mechanism, values: Sequence[float], facts: Facts, *,
                    list_violations: bool = False) -> CheckResult:
    """FAIL if the value of any run violates the limit; the estimate is the first violation, or the worst value.

    Args:
        requirement: the limit of each run.
        values: one value per run.
        facts: what the result rests on.
        list_violations: store every violating value as a fact, so that the reason prints the values.
    """
    violations = [value for value in values if not requirement.comparison.holds(value, requirement.limit)]
    worst = min(values) if requirement.comparison is Comparison.AT_LEAST else max(values)
    cause = RunsMissLimit(len(violations), len(values), violations if list_violations else None)
    return requirement_result(requirement, Verdict.FAIL if violations else Verdict.PASS, cause,
                              estimate=violations[0] if violations else worst, facts=facts)


def metric_label(requirement: Slo | Mechanism) -> str:
    """The metric with its latency limits or its side: "goodput(ttft <= 500ms)", "prefix_cache_hit_rate(a)"."""
    if isinstance(requirement, Mechanism):
        return metric_text(requirement.metric, requirement.side)
    within = requirement.phase or ", ".join(map(str, requirement.within))
    return f"{requirement.metric}({within})" if within else requirement.metric


def unavailable_result(requirement: Slo | Mechanism, missing: int, runs: int, side: str = "") -> CheckResult:
    """ERROR for a metric that some runs do not have."""
    return requirement_result(requirement, Verdict.ERROR, unavailable(requirement.metric, missing, runs, side))


def unavailable(metric: str, missing: int, runs: int, side: str = "") -> MetricUnavailable:
    """Which metric is missing in how many of the runs, and what the metric needs."""
    return MetricUnavailable(metric, missing, runs, side or None, needs=find(metric).needs)


def with_unseen_gpu(result: CheckResult, conditions: Mapping[str, str]) -> CheckResult:
    """The result with the note that no check of GPUs was possible, because the GPU is declared and not seen."""
    kind = unseen_gpu(conditions)
    return result if kind is None else replace(result, facts={**result.facts, "unseen_gpu": kind})


def exceedance_facts(exceedance: Exceedance, sample: Sample, counted_as: str) -> Facts:
    """Facts about a count of exceedances. A PASS also states the slow changes that the count cannot exclude.

    Args:
        exceedance: the judged count.
        sample: the runs.
        counted_as: "over" for latencies, "missed" or "failed" for requests.
    """
    facts: Facts = {"exceedances": exceedance.count.over, "observations": exceedance.count.of,
                    "counted_as": counted_as, **sample.facts}
    if exceedance.effective_fraction != 1:
        facts["effective_n"] = exceedance.effective_n
    if exceedance.by_level and exceedance.count_at_margin is not None:
        facts["level_exceedances"] = exceedance.count_at_margin.over
        facts["level_margin"] = 1 - exp(-exceedance.pass_margin)
    if exceedance.verdict is Verdict.PASS:
        facts |= sample.unseen
    return facts


def exceedance_cause(exceedance: Exceedance, margin: float, counted_as: str, reasons: str | None = None) -> Cause:
    """The cause of a FAIL, or what would end an INCONCLUSIVE.

    Args:
        exceedance: the judged count.
        margin: log ratio that differences between server starts may hide.
        counted_as: as in `exceedance_facts`.
        reasons: why requests failed.
    """
    share = (exceedance.count.over / exceedance.count.of, counted_as, exceedance.allowed)
    few_enough = exceedance.passes_without_margin
    if exceedance.verdict is Verdict.FAIL:
        return ShareTooLarge(*share, reasons, confidence=exceedance.confidence)
    if not exceedance.bounded and not exceedance.single_segment:
        return RequestsDependent(*share, few_enough)
    if exceedance.margin_prevents_pass:
        return StartsDiffer(*share, few_enough=few_enough, slowdown=exp(margin))
    independent = replace(exceedance, effective_fraction=1.0, bounded=True)
    if exceedance.single_segment and independent.still_needed() is not None:
        return RequestsConcurrent(*share)
    if (needed := exceedance.still_needed()) is None:
        return ShareNearLimit(*share)
    return ObservationsTooFew(*share, needed=needed)
