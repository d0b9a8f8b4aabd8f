"""Judges requirements: from a requirement and runs to a verdict with its figures.

percentile, error_rate, slo_attainment   exact binomial tests on the effective sample size; so is rate_limited_rate.
mean, p50, throughput, goodput, rates    intervals over seeds (or starts, or the segments of a single run).
startup_s                                provisional, with a stated between-start sd.
max_rate                                 rates that one search proved, or an interval over several searches.
counts, max, ==, cancelled_rate          exact, in each run.
claims                                   log ratio of pairs, provisional with a stated between-start sd.

A metric that depends on token counts is INCONCLUSIVE if only the server's usage states the counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import exp, log, sqrt

from pytest_llmperf.judging.averages import judge_average, judge_exact
from pytest_llmperf.judging.outcome import requirement_result, unavailable_result
from pytest_llmperf.judging.percentiles import judge_percentile
from pytest_llmperf.judging.rate_search import SEARCHED, judge_searched
from pytest_llmperf.judging.ratios import judge_mechanism, judge_ratio, start_sd_prior
from pytest_llmperf.judging.replica_spread import Replicas
from pytest_llmperf.judging.sample import Sample, counted_by_text, energy_disagreement, nothing_counted, unverified
from pytest_llmperf.judging.shares import judge_share
from pytest_llmperf.metrics import STATS, RunMetrics, Unit, find, is_metric
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.limits import BeyondLimit, LimitInInterval, TokensUnverified
from pytest_llmperf.results.check import CheckResult, Facts
from pytest_llmperf.slo.model import Claim, Comparison, Mechanism, Ratio, Slo
from pytest_llmperf.stats.interval import Interval, mean, t_quantile
from pytest_llmperf.stats.ratio import StartSd


def judge_slo(slo: Slo, runs: Sequence[RunMetrics], starts: Sequence[str], seeds: Sequence[int] | None = None, *,
              confidence: float = 0.95) -> CheckResult:
    """Judge one limit.

    Args:
        slo: the limit.
        runs: runs of one workload on one engine.
        starts: server start of each run.
        seeds: seed of each run; None if all seeds differ.
        confidence: confidence of each one-sided decision. Several looks need a higher confidence.

    Raises:
        ValueError: there are no runs, or the numbers of runs, starts and seeds differ.
    """
    sample = Sample(runs, starts, range(len(runs)) if seeds is None else seeds)
    return _confirmed(_judged(slo, sample, confidence), unverified(slo.named, runs), _notes(slo.named, runs))


def _judged(slo: Slo, sample: Sample, confidence: float) -> CheckResult:
    metric = find(slo.metric)
    if slo.metric in ("error_rate", "rate_limited_rate", "slo_attainment"):
        return judge_share(slo, sample, confidence)
    if metric.unit is Unit.COUNT or metric.stat == "max" or slo.comparison is Comparison.EQUAL or (
            metric.name == "cancelled_rate"):  # decided by the workload
        return judge_exact(slo, sample)
    if metric.stat in STATS and metric.stat not in ("mean", "p50"):
        return judge_percentile(slo, sample, confidence)
    if slo.metric == STARTUP:
        return judge_startup(slo, sample, confidence)
    if slo.metric in SEARCHED:
        return judge_searched(slo, sample, confidence)
    return judge_average(slo, sample, confidence)


def judge_claim(claim: Claim | Mechanism | Ratio, runs_a: Sequence[RunMetrics], runs_b: Sequence[RunMetrics], *,
                starts_a: Sequence[str] | None = None, starts_b: Sequence[str] | None = None,
                start_sd: StartSd | None = None, hardware: str = "", confidence: float = 0.99,
                apart: Sequence[int] = (), restartable: bool = True, replicas: Replicas | None = None) -> CheckResult:
    """Judge a ratio of two sides, or a mechanism on one side.

    Args:
        claim: the ratio or the mechanism.
        runs_a, runs_b: paired runs with the same workload and seed.
        starts_a, starts_b: server start of each run; None for one start per side.
        start_sd: calibrated between-start sd of the metric; None for the conservative default of the hardware.
        hardware: hardware kind.
        confidence: confidence of each one-sided decision.
        apart: per pair, number of runs from A's run to B's run; empty if unknown.
        restartable: whether both sides can be started again; False if a side is an endpoint.
        replicas: replicas of both sides that count as server starts; None if no replica counts.

    Raises:
        ValueError: there are no runs, the runs form no pairs, or the numbers of runs and starts differ.
    """
    a = Sample(runs_a, starts_a or ["a"] * len(runs_a), range(len(runs_a)))
    b = Sample(runs_b, starts_b or ["b"] * len(runs_b), range(len(runs_b)))
    why = unverified([claim.metric], runs_a, "a") or unverified([claim.metric], runs_b, "b")
    if isinstance(claim, Mechanism):
        notes = _notes([claim.metric], runs_a if claim.side == "a" else runs_b)
        return _confirmed(judge_mechanism(claim, a, b), why, notes)
    notes = _notes([claim.metric], [*runs_a, *runs_b])
    spread = start_sd or start_sd_prior(find(claim.metric), hardware)
    return _confirmed(judge_ratio(claim, a, b, spread, confidence, apart=apart, restartable=restartable,
                                  replicas=replicas), why, notes)


def _notes(metrics: Collection[str], runs: Sequence[RunMetrics]) -> Facts:
    """Facts for each verdict about these metrics, whether PASS, FAIL or INCONCLUSIVE."""
    return (counted_by_text(metrics, runs) | energy_disagreement(metrics, runs)
            | nothing_counted(filter(is_metric, metrics), runs))


def _confirmed(result: CheckResult, unverified: TokensUnverified | None, notes: Facts) -> CheckResult:
    """INCONCLUSIVE instead of PASS and FAIL where a figure rests on token counts that nothing confirms."""
    if unverified is None or result.verdict is Verdict.ERROR:
        return replace(result, facts=result.facts | notes) if notes else result
    reported = result.verdict is Verdict.REPORTED
    return replace(result, verdict=Verdict.REPORTED if reported else Verdict.INCONCLUSIVE,
                   cause=unverified, facts=result.numbers)


STARTUP = "startup_s"


def judge_startup(slo: Slo, sample: Sample, confidence: float) -> CheckResult:
    """All runs of a start have its one start-up time, and starts are few: how much they differ is assumed."""
    by_start = [group[0] for group in sample.by_start(sample.values(slo))]
    times_s = [value for value in by_start if value is not None]
    if len(times_s) < len(by_start) or min(times_s) <= 0:
        return unavailable_result(slo, len(by_start) - len(times_s), len(by_start))
    assumed = start_sd_prior(find(STARTUP))
    middle = exp(mean([log(value) for value in times_s]))
    margin = exp(t_quantile(confidence, None) * assumed.value / sqrt(len(times_s)))
    interval = Interval(middle / margin, middle * margin, confidence)
    verdict = (interval.below if slo.comparison is Comparison.AT_MOST else interval.above)(slo.limit)
    return requirement_result(
        slo, verdict, BeyondLimit() if verdict is Verdict.FAIL else LimitInInterval(), estimate=middle,
        interval=interval,
        facts={"starts": len(times_s), "start_sd": assumed.value, "start_sd_source": assumed.source},
    )
