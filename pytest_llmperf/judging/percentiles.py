"""Percentiles of latencies: how many requests, or gaps between tokens, may be over the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, floor

from pytest_llmperf.judging.dependence import (
    exceedances_by_segment,
    gap_segments_ns,
    mean_concurrency,
    observations_per_step,
)
from pytest_llmperf.judging.outcome import (
    exceedance_cause,
    exceedance_facts,
    requirement_result,
    unavailable_result,
)
from pytest_llmperf.judging.sample import Sample
from pytest_llmperf.metrics import STATS, RunMetrics, percentile
from pytest_llmperf.metrics.failed_as_infinite import missing_observations, sample_with_failures_ms
from pytest_llmperf.metrics.registry import find, find_family
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.slo.model import Slo
from pytest_llmperf.stats.design import BODY_SHARE, Count, View, total
from pytest_llmperf.stats.exceedance import GROSS, Exceedance, exceedance, or_by_level
from pytest_llmperf.stats.segments import level_pass_margin, start_pass_margin

_NS_PER_MS = 1_000_000


def judge_percentile(slo: Slo, sample: Sample, confidence: float) -> CheckResult:
    """"ttft_p99 <= 500ms": at most 1 % of the requests may be over, failed ones included."""
    metric = find(slo.metric)
    family, share = metric.family or "", STATS[metric.stat or ""]
    counts = [exceedances_by_request(run, family, slo.limit) for run in sample.runs]
    exceedances = [count for count in counts if count is not None]
    if len(exceedances) < len(counts) or not any(total(count).of for count in exceedances) or share is None:
        missing = len(counts) - len(exceedances) or len(counts)
        return unavailable_result(slo, missing, len(counts))
    by_run, concurrency = (
        [sample_with_failures_ms(run, family) for run in sample.runs],
        mean_concurrency(sample.runs, family),
    )
    margin = start_pass_margin([run.samples(family) for run in sample.runs], sample.starts, confidence)
    exceedance_test = exceedance(
        views(sample.runs, family, slo.limit, exceedances, concurrency),
        sample.starts,
        round(1 - share, 6),
        confidence,
        seeds=sample.seeds,
        pass_margin=margin,
        count_at_margin=pooled_exceedances(by_run, slo.limit * exp(-margin)) if margin else None,
        per_step=observations_per_step(sample.runs, family, concurrency),
        gross=pooled_exceedances(by_run, GROSS * slo.limit),
    )
    exceedance_test = _or_by_level(exceedance_test, slo, sample, margin)
    pooled = sorted(value for values in by_run for value in values)
    finite = pooled[min(len(pooled) - 1, floor((len(pooled) - 1) * share) + 1)] < float("inf")
    return requirement_result(
        slo,
        exceedance_test.verdict,
        exceedance_cause(exceedance_test, margin, "over"),
        estimate=percentile(pooled, share) if finite else None,
        interval=exceedance_test.quantile_interval(pooled),
        facts=exceedance_facts(exceedance_test, sample, "over")
        | ({} if find_family(family).with_failed else sample.failures),
    )


def views(runs: Sequence[RunMetrics], family: str, limit_ms: float, over: Sequence[Sequence[Count]],
          concurrency: float) -> list[View]:
    """Exceedances of a latency, grouped by request and, if a request has several observations, also by time.

    Args:
        runs: one or more runs.
        family: latency family.
        limit_ms: the limit.
        over: exceedances per run and request.
        concurrency: mean concurrency of the requests.
    """
    quartile_ms = body_limit_ms(runs, family)
    lower = [] if quartile_ms is None else [quartile_ms]
    bodies = [[exceedances_by_request(run, family, each) or [] for run in runs] for each in lower]
    if find_family(family).per_request:
        return [View(over, bodies, concurrency)]
    by_time = [[exceedances_by_segment(run, family, each) for run in runs] for each in (limit_ms, *lower)]
    return [View(over, bodies), View(by_time[0], by_time[1:])]


def body_limit_ms(runs: Sequence[RunMetrics], family: str) -> float | None:
    """A limit just below the upper quartile of all observations, so that at least a quarter of them exceed the limit.

    None if a quarter of the observations or more are of failed requests, so that the quartile is infinite.
    """
    pooled = sorted(value for run in runs for value in sample_with_failures_ms(run, family))
    quartile_ms = pooled[int(len(pooled) * (1 - BODY_SHARE))]
    return quartile_ms - 1 / _NS_PER_MS if quartile_ms < float("inf") else None


def _or_by_level(counted: Exceedance, slo: Slo, sample: Sample, margin: float) -> Exceedance:
    """The counted result, or the result of the level model if only the level model passes."""
    if counted.verdict is not Verdict.INCONCLUSIVE or not counted.bounded:
        return counted
    family = find(slo.metric).family or ""
    margin = max(margin, level_pass_margin_of(sample, family, counted.confidence))
    limit_ms, concurrency = slo.limit * exp(-margin), mean_concurrency(sample.runs, family)
    over = [exceedances_by_request(run, family, limit_ms) or [] for run in sample.runs]
    lowered = [replace(view, bodies=()) for view in views(sample.runs, family, limit_ms, over, concurrency)]
    return or_by_level(counted, lowered, sample.starts, margin, seeds=sample.seeds,
                       at_once=observations_per_step(sample.runs, family, concurrency))


def level_pass_margin_of(sample: Sample, family: str, confidence: float) -> float:
    """Pass margin of a latency for slow changes of the server, see `pass_margin.level_pass_margin`."""
    if find_family(family).per_request:
        runs: Sequence[Sequence[float]] = [run.samples(family) for run in sample.runs]
        return level_pass_margin(runs, sample.seeds, mean_concurrency(sample.runs, family), confidence)
    by_time = [gap_segments_ns(run, family, 1)[0].tolist() for run in sample.runs]
    return level_pass_margin(by_time, sample.seeds, 1.0, confidence)


def exceedances_by_request(run: RunMetrics, family: str, limit_ms: float) -> list[Count] | None:
    """Exceedances of each request, by intended send time; None if the latency is unavailable."""
    by_request = run.by_request(family)
    if by_request is None:
        return None
    limit_ns, missing = round(limit_ms * _NS_PER_MS), missing_observations(run, family)
    return [Count(missing[position], missing[position]) if values is None
            else Count(sum(value > limit_ns for value in values), len(values))
            for position, values in enumerate(by_request)]


def pooled_exceedances(by_run: Sequence[Sequence[float]], limit_ms: float) -> Count:
    """How many of all latencies are over a limit."""
    return Count(sum(value > limit_ms for values in by_run for value in values), sum(map(len, by_run)))
