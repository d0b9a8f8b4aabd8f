"""Percentiles of latencies: how many requests, or gaps between tokens, may be over the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, floor

from pytest_llmperf.metrics.families import FAMILIES
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.run import RunMetrics
from pytest_llmperf.metrics.summary import STATS, percentile
from pytest_llmperf.model.verdict import CheckResult, Verdict
from pytest_llmperf.slo.answer import answer
from pytest_llmperf.slo.endless import lost, pooled_ms
from pytest_llmperf.slo.gaps import over_in_time, stretches_ns
from pytest_llmperf.slo.model import Slo
from pytest_llmperf.slo.overlap import at_once, overlap
from pytest_llmperf.slo.reasons import rests_on, why
from pytest_llmperf.slo.sample import Sample, unavailable
from pytest_llmperf.stats.design import BODY_SHARE, Count, View, total
from pytest_llmperf.stats.exceedance import Exceedance, exceedance, or_by_level
from pytest_llmperf.stats.reach import level_reach, start_reach

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
    by_run, beside = [pooled_ms(run, family) for run in sample.runs], overlap(sample.runs, family)
    reach = start_reach([run.samples(family) for run in sample.runs], sample.starts, confidence)
    found = exceedance(views(sample.runs, family, slo.limit, known, beside), sample.starts, round(1 - share, 6),
                       confidence, seeds=sample.seeds, reach=reach,
                       near=over_any(by_run, slo.limit * exp(-reach)) if reach else None,
                       at_once=at_once(sample.runs, family, beside))
    found = _or_by_level(found, slo, sample, reach)
    pooled = sorted(value for values in by_run for value in values)
    finite = pooled[min(len(pooled) - 1, floor((len(pooled) - 1) * share) + 1)] < float("inf")
    measured = percentile(pooled, share) if finite else None
    return answer(slo, found.verdict, measured=measured, interval=found.quantile_interval(pooled),
                  n=rests_on(found, sample, "over"), reason=why(found, "over the limit", reach))


def views(runs: Sequence[RunMetrics], family: str, limit_ms: float, over: Sequence[Sequence[Count]],
          beside: float) -> list[View]:
    """The counts of a latency by request and, where a request brings many observations, by time.

    Args:
        runs: one or more.
        family: of latencies.
        limit_ms: in question.
        over: of each run and request how many are over it.
        beside: requests that are served at once (`overlap`).
    """
    quartile_ms = body_limit_ms(runs, family)
    lower = [] if quartile_ms is None else [quartile_ms]
    bodies = [[over_limit(run, family, each) or [] for run in runs] for each in lower]
    if FAMILIES[family].per_request:
        return [View(over, bodies, beside)]
    by_time = [[over_in_time(run, family, each) for run in runs] for each in (limit_ms, *lower)]
    return [View(over, bodies), View(by_time[0], by_time[1:])]


def body_limit_ms(runs: Sequence[RunMetrics], family: str) -> float | None:
    """A limit that a quarter of all observations exceed, those that equal the upper quartile among them.

    None where failed requests reach down to the quartile.
    """
    pooled = sorted(value for run in runs for value in pooled_ms(run, family))
    quartile_ms = pooled[int(len(pooled) * (1 - BODY_SHARE))]
    return quartile_ms - 1 / _NS_PER_MS if quartile_ms < float("inf") else None


def _or_by_level(counted: Exceedance, slo: Slo, sample: Sample, reach: float) -> Exceedance:
    """What was counted, or the judgement of the level model where only that passes."""
    if counted.verdict is not Verdict.INCONCLUSIVE or not counted.bounded:
        return counted
    family = find(slo.metric).family or ""
    reach = max(reach, level_reach_of(sample, family, counted.confidence))
    limit_ms, beside = slo.limit * exp(-reach), overlap(sample.runs, family)
    over = [over_limit(run, family, limit_ms) or [] for run in sample.runs]
    lowered = [replace(view, bodies=()) for view in views(sample.runs, family, limit_ms, over, beside)]
    return or_by_level(counted, lowered, sample.starts, reach, seeds=sample.seeds,
                       at_once=at_once(sample.runs, family, beside))


def level_reach_of(sample: Sample, family: str, confidence: float) -> float:
    """What slow changes of the server may hide of a latency, see `reach.level_reach`."""
    if FAMILIES[family].per_request:
        runs: Sequence[Sequence[float]] = [run.samples(family) for run in sample.runs]
        return level_reach(runs, sample.seeds, overlap(sample.runs, family), confidence)
    by_time = [stretches_ns(run, family, 1)[0].tolist() for run in sample.runs]
    return level_reach(by_time, sample.seeds, 1.0, confidence)


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
