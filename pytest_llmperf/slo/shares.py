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
from pytest_llmperf.slo.overlap import at_once, overlap, reach_of
from pytest_llmperf.slo.reasons import rests_on, why
from pytest_llmperf.slo.sample import Sample, latency_limits, unavailable
from pytest_llmperf.stats.binomial import share_interval
from pytest_llmperf.stats.design import Count, total
from pytest_llmperf.stats.exceedance import Exceedance, exceedance
from pytest_llmperf.stats.interval import Interval
from pytest_llmperf.stats.reach import Reach


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
             confidence: float) -> tuple[Exceedance, Count, Reach]:
    """What the misses prove, how many there would be within lower limits, and the largest reach that adds to them."""
    beside = {family: overlap(sample.runs, family) for family in latency_limits(slo) or ["e2el"]}
    events = {family: at_once(sample.runs, family, streams) for family, streams in beside.items()}
    reaches = {limit.family: reach_of(sample, limit.family, beside[limit.family], confidence) for limit in slo.within}
    over = total([total(run) for run in misses]).over
    touching = [one for family, one in reaches.items() if _all_misses(sample, slo, {family: one}).over > over]
    near, reach = _all_misses(sample, slo, reaches), max(touching, key=lambda one: one.both, default=Reach())
    found, failing = (
        exceedance(misses, sample.starts, allowed, confidence, seeds=sample.seeds, reach=reach.both,
                   near=near if any(one.both for one in reaches.values()) else None, overlap=max(beside.values()),
                   at_once=max((events[family] for family in families), default=1.0))
        for families in (events, _missed(sample, slo))
    )
    # A stall that nobody had makes the misses of others no fewer.
    return (failing if failing.verdict is Verdict.FAIL else found), near, reach


def _missed(sample: Sample, slo: Slo) -> list[str]:
    """Families whose limit some served request misses."""
    return [limit.family for limit in slo.within
            if any(value > limit.limit_ms for run in sample.runs for value in run.samples(limit.family))]


def _all_misses(sample: Sample, slo: Slo, reaches: Mapping[str, Reach]) -> Count:
    return total([total(_misses(run, slo, reaches)) for run in sample.runs])


def _misses(run: RunMetrics, slo: Slo, reaches: Mapping[str, Reach] = MappingProxyType({})) -> list[Count]:
    """Of each request whether it misses, within limits that are lower by what starts and moments may hide; none where
    a latency is unavailable."""
    if slo.metric == "error_rate":
        return [Count(int(not record.ok), 1) for record in run.records]
    limits_ms = {family: limit_ms * exp(-reaches[family].both if family in reaches else 0.0)
                 for family, limit_ms in latency_limits(slo).items()}
    return [Count(int(not good), 1) for good in attained(run, limits_ms) or ()]
