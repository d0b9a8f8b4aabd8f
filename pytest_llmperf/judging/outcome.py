"""From a judged requirement to its result: the metric's unit, the data behind the verdict, and the cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp

from pytest_llmperf.judging.sample import Sample
from pytest_llmperf.metrics.registry import Metric, find
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.cause import Cause, Facts
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import unseen_gpu
from pytest_llmperf.slo.model import Comparison, Mechanism, Slo
from pytest_llmperf.stats.exceedance import Exceedance
from pytest_llmperf.stats.interval import Interval
from pytest_llmperf.stats.priors import Scale, scale_of, worse_when_larger


def requirement_result(requirement: Slo | Mechanism, verdict: Verdict, cause: Cause | None = None, *,
                       estimate: float | None = None, interval: Interval | None = None,
                       facts: Facts | None = None) -> CheckResult:
    """A result in the unit of the requirement's metric; a PASS has no cause."""
    return CheckResult(
        subject=requirement.text or str(requirement),
        verdict=verdict,
        metric=metric_label(requirement),
        unit=find(requirement.metric).unit,
        comparison=requirement.comparison,
        limit=requirement.limit,
        estimate=estimate,
        interval=interval,
        cause=None if verdict is Verdict.PASS else cause,
        facts=facts or {},
    )


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
    counts: Facts = {"missing_runs": len(violations), "of_runs": len(values)}
    listed: Facts = {"violations": violations} if list_violations else {}
    return requirement_result(requirement, Verdict.FAIL if violations else Verdict.PASS, Cause.RUNS_MISS_LIMIT,
                              estimate=violations[0] if violations else worst, facts=facts | counts | listed)


def metric_label(requirement: Slo | Mechanism) -> str:
    """The metric with its latency limits or its side: "goodput(ttft <= 500ms)", "prefix_cache_hit_rate(a)"."""
    if isinstance(requirement, Mechanism):
        return f"{requirement.metric}({requirement.side})"
    within = ", ".join(map(str, requirement.within))
    return f"{requirement.metric}({within})" if within else requirement.metric


def unavailable_result(requirement: Slo | Mechanism, missing: int, runs: int, side: str = "") -> CheckResult:
    """ERROR for a metric that some runs do not have."""
    return requirement_result(requirement, Verdict.ERROR, Cause.METRIC_UNAVAILABLE,
                              facts=unavailable(requirement.metric, missing, runs, side))


def unavailable(metric: str, missing: int, runs: int, side: str = "") -> Facts:
    """Which metric is missing in how many of the runs, and what the metric needs."""
    facts: Facts = {"metric": metric, "missing_runs": missing, "of_runs": runs, "needs": find(metric).needs}
    return facts | {"side": side} if side else facts


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


def exceedance_cause(exceedance: Exceedance, margin: float) -> tuple[Cause, Facts]:
    """The cause of a FAIL, or what would end an INCONCLUSIVE.

    Args:
        exceedance: the judged count.
        margin: log ratio that differences between server starts may hide.
    """
    facts: Facts = {"share": exceedance.count.over / exceedance.count.of, "allowed_share": exceedance.allowed}
    if exceedance.verdict is Verdict.FAIL:
        return Cause.SHARE_TOO_LARGE, facts | {"confidence": exceedance.confidence}
    few_enough: Facts = facts | {"few_enough": exceedance.passes_without_margin}
    if not exceedance.bounded and not exceedance.single_segment:
        return Cause.REQUESTS_DEPENDENT, few_enough
    if exceedance.margin_prevents_pass:
        return Cause.STARTS_DIFFER, few_enough | {"slowdown": exp(margin)}
    independent = replace(exceedance, effective_fraction=1.0, bounded=True)
    if exceedance.single_segment and independent.still_needed() is not None:
        return Cause.REQUESTS_CONCURRENT, facts
    if (needed := exceedance.still_needed()) is None:
        return Cause.SHARE_NEAR_LIMIT, facts
    return Cause.OBSERVATIONS_TOO_FEW, facts | {"needed": needed}


def change_of(metric: Metric, distance: float) -> float:
    """A distance on the metric's scale, above 0 for worse, as the change of the metric: 0.02 for +2 %."""
    return scale_of(metric).change(distance, worse_when_larger=worse_when_larger(metric))


def before_and_after(metric: Metric, level: float, effect: float) -> tuple[float, float]:
    """The two values of a comparison, in the metric's unit.

    Args:
        level: mean of the later runs on the metric's scale (its exponential is a geometric mean for latencies).
        effect: the difference between the two sides on that scale.
    """
    before, after = (scale_of(metric).in_unit(reading, worse_when_larger=worse_when_larger(metric))
                     for reading in (level - effect, level))
    return before, after


def change_result(
    comparison: str, metric: Metric, verdict: Verdict, *, level: float, effect: float, limits: tuple[float, float],
    confidence: float, tolerated: float, cause: Cause | None, facts: Facts,
) -> CheckResult:
    """The result of a comparison of a metric with a baseline or a reference build.

    `after` is the mean of today's runs on the metric's scale (a geometric mean for latencies). `before` is that mean
    less the effect: the level of the other side on the seeds of today's runs, weighted as the effect weights it.

    Args:
        comparison: first word of the subject.
        level: mean of today's compared runs on the metric's scale.
        effect, limits, tolerated: the difference, its confidence limits and the margin, as distances on the metric's
            scale.
        confidence: one-sided confidence of each limit.
    """
    low, high = sorted(change_of(metric, limit) for limit in limits)
    before, after = before_and_after(metric, level, effect)
    return CheckResult(
        subject=f"{comparison} {metric.name}",
        verdict=verdict,
        metric=metric.name,
        unit=Unit.CHANGE if scale_of(metric) is Scale.LOG else Unit.POINTS,
        comparison=Comparison.AT_MOST if worse_when_larger(metric) else Comparison.AT_LEAST,
        limit=change_of(metric, tolerated),
        estimate=change_of(metric, effect),
        before=before,
        after=after,
        interval=Interval(low, high, confidence),
        cause=cause,
        facts=facts,
    )
