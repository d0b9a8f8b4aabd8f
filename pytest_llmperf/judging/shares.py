"""Error rate and attainment: how many requests may miss, of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from types import MappingProxyType

from pytest_llmperf.judging.dependence import mean_concurrency, observations_per_step
from pytest_llmperf.judging.outcome import (
    exceedance_cause,
    exceedance_facts,
    requirement_result,
    unavailable_result,
)
from pytest_llmperf.judging.percentiles import body_limit_ms, level_pass_margin_of
from pytest_llmperf.judging.sample import Sample, latency_limits
from pytest_llmperf.metrics.goodput import attained
from pytest_llmperf.metrics.run import SHARES, RunMetrics
from pytest_llmperf.model.record import failure_counts, reasons_text
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.limits import RequestsMissLimit
from pytest_llmperf.results.check import CheckResult, Facts
from pytest_llmperf.slo.model import Comparison, Slo
from pytest_llmperf.stats.design import Count, View, total
from pytest_llmperf.stats.exceedance import Exceedance, exceedance, or_by_level
from pytest_llmperf.stats.interval import Interval, share_interval
from pytest_llmperf.stats.segments import start_pass_margin


def judge_share(slo: Slo, sample: Sample, confidence: float) -> CheckResult:
    """"error_rate <= 1%" and "slo_attainment(…) >= 99%": binomials over requests; a limit of none is exact."""
    misses = [_misses(run, slo) for run in sample.runs]
    available_misses = [run for run in misses if run]
    if len(available_misses) < len(misses):
        return unavailable_result(slo, len(misses) - len(available_misses), len(misses))
    attaining = slo.metric == "slo_attainment"
    allowed = round(1 - slo.limit, 12) if attaining else slo.limit
    total_count = total([total(run) for run in available_misses])
    rate = total_count.over / total_count.of
    measured = (total_count.of - total_count.over) / total_count.of if attaining else rate
    word, reasons = "missed" if attaining else "failed", _reasons(slo, sample)
    why = reasons.get("failure_reasons")
    if slo.comparison is Comparison.EQUAL or not 0 < allowed < 1:
        holds = slo.comparison.holds(measured, slo.limit)
        return requirement_result(
            slo,
            Verdict.PASS if holds else Verdict.FAIL,
            RequestsMissLimit(total_count.over, total_count.of, word, why),
            estimate=measured,
            facts=sample.facts | reasons,
        )
    exceedance_test, count_at_margin, margin = _judge_misses(slo, sample, available_misses, allowed, confidence)
    low, high = (
        share_interval(count.over * exceedance_test.effective_fraction, exceedance_test.effective_n, confidence)
        for count in (total_count, count_at_margin)
    )
    interval = (
        Interval(1 - high.high, 1 - low.low, confidence) if attaining else Interval(low.low, high.high, confidence)
    )
    cause = exceedance_cause(exceedance_test, margin, word, why)
    return requirement_result(slo, exceedance_test.verdict, cause, estimate=measured, interval=interval,
                              facts=exceedance_facts(exceedance_test, sample, word) | reasons)


def _reasons(slo: Slo, sample: Sample) -> Facts:
    """Why the requests failed that the metric counts; empty if none did."""
    counted = SHARES.get(slo.metric)
    if counted is None:
        return sample.failures
    counts = failure_counts(record for run in sample.runs for record in run.records if counted(record))
    return {"failure_reasons": reasons_text(counts)} if counts else {}


def _judge_misses(slo: Slo, sample: Sample, misses: Sequence[Sequence[Count]], allowed: float,
                  confidence: float) -> tuple[Exceedance, Count, float]:
    """What the misses prove, how many there would be within lower limits, and the largest reach that adds to them."""
    runs, limits_ms = sample.runs, latency_limits(slo)
    concurrency_by_family = {family: mean_concurrency(runs, family) for family in limits_ms or ["e2el"]}
    events = {family: observations_per_step(runs, family, streams) for family, streams in concurrency_by_family.items()}
    margins = {family: start_pass_margin([run.samples(family) for run in runs], sample.starts, confidence)
               for family in limits_ms}
    over = total([total(run) for run in misses]).over
    relevant_margins = [
        margin for family, margin in margins.items() if _total_misses(sample, slo, {family: margin}).over > over
    ]
    count_at_margin, margin = _total_misses(sample, slo, margins), max(relevant_margins, default=0.0)
    view = View(
        misses,
        [
            _over(runs, family, quartile_ms)
            for family in limits_ms
            if (quartile_ms := body_limit_ms(runs, family)) is not None
        ],
        max(concurrency_by_family.values()),
    )
    exceedance_test, failing = (
        exceedance([view], sample.starts, allowed, confidence, seeds=sample.seeds, pass_margin=margin,
                   count_at_margin=count_at_margin if any(margins.values()) else None,
                   per_step=max((events[family] for family in families), default=1.0))
        for families in (events, _missed_families(sample, slo))
    )
    # A stall that nobody had makes the misses of others no fewer.
    judged = failing if failing.verdict is Verdict.FAIL else exceedance_test
    if not limits_ms or judged.verdict is not Verdict.INCONCLUSIVE or not judged.bounded:
        return judged, count_at_margin, margin
    lower = {family: max(margins[family], level_pass_margin_of(sample, family, confidence)) for family in limits_ms}
    lowered = View([_misses(run, slo, lower) for run in runs], overlap=view.overlap)
    judged = or_by_level(judged, [lowered], sample.starts, max(lower.values()), seeds=sample.seeds,
                         at_once=max(events.values()))
    return judged, (judged.count_at_margin or count_at_margin) if judged.by_level else count_at_margin, margin


def _over(runs: Sequence[RunMetrics], family: str, limit_ms: float) -> list[list[Count]]:
    """Misses of one limit, per run and request."""
    return [[Count(int(not good), 1) for good in attained(run, {family: limit_ms}) or ()] for run in runs]


def _missed_families(sample: Sample, slo: Slo) -> list[str]:
    """Families whose limit some served request misses."""
    return [limit.family for limit in slo.within
            if any(value > limit.limit_ms for run in sample.runs for value in run.samples(limit.family))]


def _total_misses(sample: Sample, slo: Slo, margins: Mapping[str, float]) -> Count:
    return total([total(_misses(run, slo, margins)) for run in sample.runs])


def _misses(run: RunMetrics, slo: Slo, margins: Mapping[str, float] = MappingProxyType({})) -> list[Count]:
    """Misses per request, with limits that are lowered by the pass margins; empty if a latency is unavailable."""
    if (counts := SHARES.get(slo.metric)) is not None:
        return [Count(int(counts(record)), 1) for record in run.records]
    limits_ms = {family: limit_ms * exp(-margins.get(family, 0.0))
                 for family, limit_ms in latency_limits(slo).items()}
    return [Count(int(not good), 1) for good in attained(run, limits_ms) or ()]
