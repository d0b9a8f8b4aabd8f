"""Percentiles of latencies: how many requests, or gaps between tokens, may be over the limit."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, floor

from pytest_llmperf.metrics.families import FAMILIES
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.run import RunMetrics
from pytest_llmperf.metrics.summary import STATS, percentile
from pytest_llmperf.model.verdict import CheckResult, Verdict
from pytest_llmperf.slo.answer import answer
from pytest_llmperf.slo.endless import lost, pooled_ms
from pytest_llmperf.slo.gaps import over_in_time
from pytest_llmperf.slo.model import Slo
from pytest_llmperf.slo.overlap import at_once, overlap, reach_of
from pytest_llmperf.slo.reasons import rests_on, why
from pytest_llmperf.slo.sample import Sample, unavailable
from pytest_llmperf.stats.design import Count, total
from pytest_llmperf.stats.exceedance import exceedance

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
    reach = reach_of(sample, family, beside, confidence)
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
