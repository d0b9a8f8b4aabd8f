"""Demands that count: percentiles, error rate, attainment. Each asks how many may miss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, floor
from types import MappingProxyType

from pytest_llmperf.metrics.families import FAMILIES
from pytest_llmperf.metrics.goodput import attained
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.run import RunMetrics
from pytest_llmperf.metrics.summary import STATS, percentile
from pytest_llmperf.model.verdict import CheckResult, Verdict
from pytest_llmperf.slo.answer import answer
from pytest_llmperf.slo.endless import lost, pooled_ms
from pytest_llmperf.slo.gaps import over_in_time
from pytest_llmperf.slo.model import Comparison, Slo
from pytest_llmperf.slo.overlap import at_once, overlap
from pytest_llmperf.slo.reasons import rests_on, why
from pytest_llmperf.slo.sample import Sample, latency_limits, unavailable
from pytest_llmperf.stats.binomial import share_interval
from pytest_llmperf.stats.design import Count, total
from pytest_llmperf.stats.exceedance import exceedance
from pytest_llmperf.stats.interval import Interval
from pytest_llmperf.stats.reach import Reach, start_reach, time_reach

_NS_PER_MS = 1_000_000


def judge_percentile(slo: Slo, sample: Sample, confidence: float) -> CheckResult:
    """"ttft_p99 <= 500ms": at most 1 % of the requests may be over, failed ones included."""
    metric = find(slo.metric)
    family, share = metric.family or "", STATS[metric.stat or ""]
    counts = [over_limit(run, family, slo.limit) for run in sample.runs]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or not any(total(count).of for count in known) or share is None:
        missing = len(counts) - len(known) or len(counts)
        return answer(slo, Verdict.ERROR, reason=unavailable(slo.metric, missing, len(counts)))
    by_run, kind = [pooled_ms(run, family) for run in sample.runs], FAMILIES[family]
    beside = overlap(sample.runs, family)
    reach = _reach(sample, family, beside, confidence)
    found = exceedance(known, sample.starts, round(1 - share, 6), confidence, seeds=sample.seeds, reach=reach.both,
                       near=over_any(by_run, slo.limit * exp(-reach.both)) if reach.both else None,
                       in_time=() if kind.per_request else [over_in_time(run, family, slo.limit)
                                                            for run in sample.runs],
                       at_once=at_once(sample.runs, family, beside), overlap=beside if kind.per_request else 1.0)
    pooled = sorted(value for values in by_run for value in values)
    finite = pooled[min(len(pooled) - 1, floor((len(pooled) - 1) * share) + 1)] < float("inf")
    measured = percentile(pooled, share) if finite else None
    return answer(slo, found.verdict, measured=measured, interval=found.quantile_interval(pooled),
                  n=rests_on(found, sample, "over"), reason=why(found, "over the limit", reach))


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
    beside = {family: overlap(sample.runs, family) for family in latency_limits(slo) or ["e2el"]}
    reaches = {limit.family: _reach(sample, limit.family, beside[limit.family], confidence) for limit in slo.within}
    near = _all_misses(sample, slo, reaches)
    touching = [one for family, one in reaches.items() if _all_misses(sample, slo, {family: one}).over > both.over]
    reach = max(touching, key=lambda one: one.both, default=Reach())
    events = {family: at_once(sample.runs, family, streams) for family, streams in beside.items()}
    found, failing = (
        exceedance(known, sample.starts, allowed, confidence, seeds=sample.seeds, reach=reach.both,
                   near=near if any(one.both for one in reaches.values()) else None, overlap=max(beside.values()),
                   at_once=max((events[family] for family in families), default=1.0))
        for families in (events, _missed(sample, slo))
    )
    if failing.verdict is Verdict.FAIL:  # a stall that nobody had makes the misses of others no fewer
        found = failing
    low, high = (share_interval(count.over * found.worth, found.effective_n, confidence) for count in (both, near))
    shown = Interval(1 - high.high, 1 - low.low, confidence) if attaining else Interval(low.low, high.high, confidence)
    return answer(slo, found.verdict, measured=measured, interval=shown,
                  n=rests_on(found, sample, word), reason=why(found, word, reach))


def _reach(sample: Sample, family: str, beside: float, confidence: float) -> Reach:
    """Of latencies; a single gap is known by its stretches of time."""
    served = [run.samples(family) for run in sample.runs]
    return Reach(start_reach(served, sample.starts, confidence),
                 0.0 if FAMILIES[family].one_gap else time_reach(served, sample.seeds, beside, confidence))


def over_limit(run: RunMetrics, family: str, limit_ms: float) -> list[Count] | None:
    """Of each request, by intended send time, how many of its observations are over; None where unavailable."""
    by_request = run.by_request(family)
    if by_request is None:
        return None
    limit_ns, missing = round(limit_ms * _NS_PER_MS), lost(run, family)
    return [Count(missing[position], missing[position]) if values is None
            else Count(sum(value > limit_ns for value in values), len(values))
            for position, values in enumerate(by_request)]


def over_any(by_run: Sequence[Sequence[float]], limit_ms: float) -> Count:
    """How many of all latencies are over a limit."""
    return Count(sum(value > limit_ms for values in by_run for value in values), sum(map(len, by_run)))


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
