"""Error rate and attainment: how many requests may miss, of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from types import MappingProxyType

from pytest_llmperf.metrics.goodput import attained
from pytest_llmperf.metrics.run import RunMetrics
from pytest_llmperf.model.verdict import CheckResult, Verdict
from pytest_llmperf.slo.answer import answer
from pytest_llmperf.slo.model import Comparison, Slo
from pytest_llmperf.slo.overlap import at_once, overlap
from pytest_llmperf.slo.percentiles import body_limit_ms, level_reach_of
from pytest_llmperf.slo.reasons import rests_on, why
from pytest_llmperf.slo.sample import Sample, latency_limits, unavailable
from pytest_llmperf.stats.binomial import share_interval
from pytest_llmperf.stats.design import Count, View, total
from pytest_llmperf.stats.exceedance import Exceedance, exceedance, or_by_level
from pytest_llmperf.stats.interval import Interval
from pytest_llmperf.stats.reach import start_reach


def judge_share(slo: Slo, sample: Sample, confidence: float) -> CheckResult:
    """"error_rate <= 1%" and "slo_attainment(…) >= 99%": binomials over requests; a limit of none is exact."""
    misses = [_misses(run, slo) for run in sample.runs]
    known = [run for run in misses if run]
    if len(known) < len(misses):
        return answer(slo, Verdict.ERROR, reason=unavailable(slo.metric, len(misses) - len(known), len(misses)))
    attaining = slo.metric == "slo_attainment"
    allowed = round(1 - slo.limit, 12) if attaining else slo.limit
    both = total([total(run) for run in known])
    rate = both.over / both.of
    measured = (both.of - both.over) / both.of if attaining else rate
    word = "missed" if attaining else "failed"
    if slo.comparison is Comparison.EQUAL or not 0 < allowed < 1:
        holds = slo.comparison.holds(measured, slo.limit)
        return answer(slo, Verdict.PASS if holds else Verdict.FAIL, measured=measured,
                      n=f"{both.over} of {both.of} {word}, {sample}", reason=f"{both.over} of {both.of} {word}")
    found, near, reach = _counted(slo, sample, known, allowed, confidence)
    low, high = (share_interval(count.over * found.worth, found.effective_n, confidence) for count in (both, near))
    shown = Interval(1 - high.high, 1 - low.low, confidence) if attaining else Interval(low.low, high.high, confidence)
    return answer(slo, found.verdict, measured=measured, interval=shown,
                  n=rests_on(found, sample, word), reason=why(found, word, reach))


def _counted(slo: Slo, sample: Sample, misses: Sequence[Sequence[Count]], allowed: float,
             confidence: float) -> tuple[Exceedance, Count, float]:
    """What the misses prove, how many there would be within lower limits, and the largest reach that adds to them."""
    runs, limits_ms = sample.runs, latency_limits(slo)
    beside = {family: overlap(runs, family) for family in limits_ms or ["e2el"]}
    events = {family: at_once(runs, family, streams) for family, streams in beside.items()}
    reaches = {family: start_reach([run.samples(family) for run in runs], sample.starts, confidence)
               for family in limits_ms}
    over = total([total(run) for run in misses]).over
    touching = [one for family, one in reaches.items() if _all_misses(sample, slo, {family: one}).over > over]
    near, reach = _all_misses(sample, slo, reaches), max(touching, default=0.0)
    view = View(misses, [_over(runs, family, quartile_ms) for family in limits_ms
                         if (quartile_ms := body_limit_ms(runs, family)) is not None], max(beside.values()))
    found, failing = (
        exceedance([view], sample.starts, allowed, confidence, seeds=sample.seeds, reach=reach,
                   near=near if any(reaches.values()) else None,
                   at_once=max((events[family] for family in families), default=1.0))
        for families in (events, _missed(sample, slo))
    )
    # A stall that nobody had makes the misses of others no fewer.
    judged = failing if failing.verdict is Verdict.FAIL else found
    if not limits_ms or judged.verdict is not Verdict.INCONCLUSIVE or not judged.bounded:
        return judged, near, reach
    lower = {family: max(reaches[family], level_reach_of(sample, family, confidence)) for family in limits_ms}
    lowered = View([_misses(run, slo, lower) for run in runs], overlap=view.overlap)
    judged = or_by_level(judged, [lowered], sample.starts, max(lower.values()), seeds=sample.seeds,
                         at_once=max(events.values()))
    return judged, (judged.near or near) if judged.by_level else near, reach


def _over(runs: Sequence[RunMetrics], family: str, limit_ms: float) -> list[list[Count]]:
    """Of each run and request whether it misses one limit."""
    return [[Count(int(not good), 1) for good in attained(run, {family: limit_ms}) or ()] for run in runs]


def _missed(sample: Sample, slo: Slo) -> list[str]:
    """Families whose limit some served request misses."""
    return [limit.family for limit in slo.within
            if any(value > limit.limit_ms for run in sample.runs for value in run.samples(limit.family))]


def _all_misses(sample: Sample, slo: Slo, reaches: Mapping[str, float]) -> Count:
    return total([total(_misses(run, slo, reaches)) for run in sample.runs])


def _misses(run: RunMetrics, slo: Slo, reaches: Mapping[str, float] = MappingProxyType({})) -> list[Count]:
    """Of each request whether it misses, within limits that are lower by what server starts may hide; none where a
    latency is unavailable."""
    if slo.metric == "error_rate":
        return [Count(int(not record.ok), 1) for record in run.records]
    limits_ms = {family: limit_ms * exp(-reaches.get(family, 0.0))
                 for family, limit_ms in latency_limits(slo).items()}
    return [Count(int(not good), 1) for good in attained(run, limits_ms) or ()]
