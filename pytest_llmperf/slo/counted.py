"""Demands that count: percentiles, error rate, attainment. Each asks how many may miss."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, floor

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
from pytest_llmperf.slo.sample import Sample, latency_limits, unavailable
from pytest_llmperf.stats.binomial import share_interval
from pytest_llmperf.stats.design import Count, start_reach, time_reach, total
from pytest_llmperf.stats.exceedance import Exceedance, exceedance
from pytest_llmperf.stats.interval import Interval

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
    beside = overlap(sample.runs, family) if kind.per_request else 1.0
    of_starts = start_reach(by_run, sample.starts, confidence)
    of_time = 0.0 if kind.one_gap else time_reach([run.samples(family) for run in sample.runs], beside, confidence)
    reach = max(of_starts, of_time)
    found = exceedance(known, sample.starts, round(1 - share, 6), confidence, repeats=sample.repeats, reach=reach,
                       near=over_any(by_run, slo.limit * exp(-reach)) if reach or sample.start_count > 1 else None,
                       in_time=() if kind.per_request else [over_in_time(run, family, slo.limit)
                                                            for run in sample.runs],
                       at_once=at_once(sample.runs, family), overlap=beside)
    pooled = sorted(value for values in by_run for value in values)
    finite = pooled[min(len(pooled) - 1, floor((len(pooled) - 1) * share) + 1)] < float("inf")
    measured = percentile(pooled, share) if finite else None
    return answer(slo, found.verdict, measured=measured, interval=found.quantile_interval(pooled),
                  n=rests_on(found, sample, "over"), reason=why(found, "over the limit", starts=of_starts >= of_time))


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
    found = exceedance(known, sample.starts, allowed, confidence, repeats=sample.repeats)
    limits = share_interval(both.over * found.worth, found.effective_n, confidence)
    shown = Interval(1 - limits.high, 1 - limits.low, confidence) if attaining else limits
    return answer(slo, found.verdict, measured=measured, interval=shown,
                  n=rests_on(found, sample, word), reason=why(found, word))


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


def _misses(run: RunMetrics, slo: Slo) -> list[Count] | None:
    if slo.metric == "error_rate":
        return [Count(int(not record.ok), 1) for record in run.records]
    met = attained(run, latency_limits(slo))
    return None if met is None else [Count(int(not good), 1) for good in met]


def rests_on(found: Exceedance, sample: Sample, word: str) -> str:
    """"4 of 1000 over, effective n 740, 3 runs, conditional on this server start"."""
    count = f"{found.count.over} of {found.count.of} {word}"
    effective = "" if found.worth == 1 else f", effective n {found.effective_n:.0f}"
    return f"{count}{effective}, {sample}"


def why(found: Exceedance, word: str, *, starts: bool = True) -> str:
    """The cause of a FAIL, or what would end an INCONCLUSIVE; whether the reach is of starts or of moments."""
    rate = f"{100 * found.count.over / found.count.of:.3g} %"
    if found.verdict is Verdict.FAIL:
        return (f"{rate} are {word} where {100 * found.allowed:.3g} % may be, "
                f"more than chance allows at {100 * found.confidence:g} %")
    if found.levels_differ:
        slower = f"{100 * (exp(found.reach) - 1):.2g} % slower"
        if starts:
            return (f"{rate} are {word}, which would be few enough, but the server starts differ so much that others "
                    f"may be {slower}; measure on more starts: perf.measure(spec, …, starts=N)")
        return (f"{rate} are {word}, which would be few enough, but the server is so much slower at some times than at "
                f"others that it may be {slower} over a longer one; measure more requests or more runs")
    more = found.still_needed()
    if more is None:
        return (f"{rate} {word} is too near the allowed {100 * found.allowed:.3g} % for any affordable number of "
                "requests; choose another limit")
    return f"about {more} more observations would decide it if {rate} stay {word}; measure more requests or more runs"
