"""Judges claims: the ratio of two sides, and the mechanism checks on a single side."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, expm1, floor, log, sqrt

from pytest_llmperf.judging.outcome import each_run_result, unavailable, unavailable_result, without_cause
from pytest_llmperf.judging.rate_search import SEARCHED
from pytest_llmperf.judging.replica_spread import Replicas, shows_replicas
from pytest_llmperf.judging.sample import Sample
from pytest_llmperf.metrics import Metric, RunMetrics, Unit
from pytest_llmperf.metrics.failed_as_infinite import infinite_runs, value_with_failures
from pytest_llmperf.metrics.server import COUNTED
from pytest_llmperf.model.record import failure_counts, reasons_text
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.comparisons import (
    EndpointStartsUnknown,
    MachineDrifts,
    PairsTooFew,
    RatioMissesLimit,
    RatioNearLimit,
    StartsTooFew,
)
from pytest_llmperf.results.causes.limits import MetricUnavailable, ValuesInfinite, ValueZero
from pytest_llmperf.results.check import Cause, CheckResult, Facts
from pytest_llmperf.slo.model import Claim, Comparison, Mechanism, Ratio
from pytest_llmperf.stats.interval import t_quantile
from pytest_llmperf.stats.priors import Kind, kind_of
from pytest_llmperf.stats.ratio import ProvisionalRatio, StartSd, provisional_ratio

#: Pairs of runs whose two sides ran on the same start: what a start changes, it changes on both.
ONE_START = StartSd(0.0)


def start_sd_prior(metric: Metric, hardware: str = "") -> StartSd:
    """Default between-start sd of a metric without calibration; `hardware` is the hardware kind.

    Start-up times on H200s: 83 to 110 s with a cold compile cache, 55 to 76 s with a warm cache.
    Tails: a p99 of 300 requests rests on three requests. For a log-normal latency with an sd of 50 % the sampling sd of
    the p99 is 0.5 √(0.01 · 0.99 / 300) / φ(2.33) = 11 %; with the 10 % of a first token, 15 %. Queues amplify likewise.
    CPUs: 27 starts on shared cores differed by 16 to 17 % in TPOT, successive starts by 12 to 15 %; in median TTFT by
    7 to 11 %, in p99s by 6 to 12 % (stats/priors.py).
    Blocks and accepted drafts depend on no speed. H200, two sessions each: 57,489 and 57,606 blocks, 57,545 and 57,904
    blocks; shares of accepted drafts of an H200 and of a CPU: 59.5 and 59.5 %, 41.3 and 41.5 %, 31.6 and 31.8 %.
    """
    if metric.name == "startup_s":
        return StartSd(0.20, "default for start-up times")
    if metric.name in (*COUNTED, *SEARCHED):
        counted = metric.name in COUNTED
        return (StartSd(0.005, "default for blocks and accepted drafts") if counted
                else StartSd(0.05, "default for the highest rate within an SLO"))
    kind = kind_of(metric)
    if kind is Kind.TAIL:
        return StartSd(0.15, "default for tails")
    if kind is Kind.TTFT:
        return StartSd(0.10, "default for latencies with a first token")
    if hardware == "cpu":
        return StartSd(0.15, "default for means per token and throughput on CPUs")
    return StartSd(0.03, "default for means per token and throughput")


def judge_ratio(
    claim: Claim | Ratio, a: Sample, b: Sample, start_sd: StartSd, confidence: float, *, apart: Sequence[int] = (),
    restartable: bool = True, replicas: Replicas | None = None,
) -> CheckResult:
    """PASS where the ratio is proven on the right side of the claim, FAIL where on the wrong one; else REPORTED.

    `apart`, `restartable` and `replicas` are as `judge_claim` takes them.
    """
    top, bottom = (a, b) if claim.numerator == "a" else (b, a)
    for side, sample in (("a", a), ("b", b)):
        if unusable := unusable_values(claim.metric, sample.runs, side):
            return _ratio_result(claim, Verdict.ERROR, unusable, {})
    numerators, denominators = _values(claim, top), _values(claim, bottom)
    if min(*numerators, *denominators) <= 0:
        return _ratio_result(claim, Verdict.ERROR, ValueZero(claim.metric), {})
    seen = replicas if replicas is not None and replicas.are_seen else None
    shown = (a.start_count, b.start_count) if seen is None else seen.counts
    starts: tuple[float, float] = shown if seen is None else seen.starts
    of_top, of_bottom = starts if claim.numerator == "a" else starts[::-1]
    estimate = provisional_ratio(numerators, denominators, start_sd, numerator_starts=of_top,
                                 denominator_starts=of_bottom, confidence=confidence,
                                 apart=apart if claim.numerator == "b" else [-distance for distance in apart])
    basis: Facts = {"pairs": estimate.pairs, "starts_a": shown[0], "starts_b": shown[1]}
    if seen is not None:
        basis["replicas_seen"] = True
    if start_sd != ONE_START:
        basis |= {"start_sd": start_sd.value, "start_sd_source": start_sd.source}
    if isinstance(claim, Ratio):
        return _ratio_result(claim, Verdict.REPORTED, None, basis, estimate)
    limits = estimate.interval
    verdict = (limits.below if claim.comparison is Comparison.AT_MOST else limits.above)(claim.ratio)
    cause = _cause(claim, verdict, estimate, starts, restartable=restartable, replicas_seen=seen is not None)
    return _ratio_result(claim, verdict, cause, basis, estimate)


def unusable_values(metric: str, runs: Sequence[RunMetrics],
                    side: str = "") -> MetricUnavailable | ValuesInfinite | None:
    """Why the values of a metric cannot be compared; None if they can."""
    missing = sum(value_with_failures(run, metric) is None for run in runs)
    if missing:
        return unavailable(metric, missing, len(runs), side)
    return infinite_values(metric, runs, side)


def infinite_values(metric: str, runs: Sequence[RunMetrics], side: str = "") -> ValuesInfinite | None:
    """How many runs have an infinite value because requests failed; None if every value is finite."""
    affected = infinite_runs(metric, runs)
    if not affected:
        return None
    counts = failure_counts(record for run in affected for record in run.records)
    return ValuesInfinite(metric, len(affected), len(runs), side or None, failed_requests=sum(counts.values()),
                          failure_reasons=reasons_text(counts))


def judge_mechanism(mechanism: Mechanism, a: Sample, b: Sample) -> CheckResult:
    """Every run of the side must show it: a mechanism works or it does not."""
    sample = a if mechanism.side == "a" else b
    values = [run.value(mechanism.metric) for run in sample.runs]
    available_values = [value for value in values if value is not None]
    if len(available_values) < len(values):
        missing = len(values) - len(available_values)
        return unavailable_result(mechanism, missing, len(values), mechanism.side)
    return each_run_result(mechanism, available_values, {"runs": len(values), "counted_as": "each run"},
                           list_violations=True)


def _values(claim: Claim | Ratio, sample: Sample) -> Sequence[float]:
    return [value for run in sample.runs if (value := value_with_failures(run, claim.metric)) is not None]


def _ratio_result(claim: Claim | Ratio, verdict: Verdict, cause: Cause | None, facts: Facts,
                  estimate: ProvisionalRatio | None = None) -> CheckResult:
    return without_cause(CheckResult(
        subject=claim.text or str(claim),
        verdict=verdict,
        metric=f"{claim.metric}({claim.numerator}) / {claim.metric}({claim.denominator})",
        unit=Unit.RATIO,
        comparison=None if isinstance(claim, Ratio) else claim.comparison,
        limit=None if isinstance(claim, Ratio) else claim.ratio,
        estimate=None if estimate is None else estimate.ratio,
        interval=None if estimate is None else estimate.interval,
        cause=cause,
        facts=facts,
    ))


def _cause(
    claim: Claim, verdict: Verdict, estimate: ProvisionalRatio, starts: tuple[float, float], *, restartable: bool,
    replicas_seen: bool,
) -> Cause:
    if verdict is Verdict.FAIL:
        return RatioMissesLimit()
    if estimate.start_sd == ONE_START:
        return PairsTooFew(estimate.pairs)
    return _undecided(claim, estimate, starts, restartable=restartable, replicas_seen=replicas_seen)


def _undecided(
    claim: Claim, estimate: ProvisionalRatio, starts: tuple[float, float], *, restartable: bool, replicas_seen: bool
) -> Cause:
    """Why a claim is open, and how much more would decide it."""
    if _hinges_on_drift(claim, estimate):
        return MachineDrifts(expm1(abs(estimate.drift)))
    distance = abs(log(estimate.ratio) - log(claim.ratio))
    z, of_starts = t_quantile(estimate.interval.confidence, estimate.start_sd.df), 2 * estimate.start_sd.value**2
    of_pairs = (estimate.pair_sd or 0.0) ** 2 * min(starts) / estimate.pairs
    if distance < z * estimate.start_sd.value / 10:
        return RatioNearLimit()
    needed = max(2, ceil((z / distance) ** 2 * (of_starts + of_pairs)))
    pairs_decide = not restartable and distance > z * sqrt(of_starts / min(starts))
    if pairs_decide or needed <= min(starts):
        return PairsTooFew(estimate.pairs)
    if restartable:
        return StartsTooFew(needed)
    learnt = replicas_seen and estimate.start_sd.df is not None
    return EndpointStartsUnknown(claim.metric, _needed_start_sd(estimate, distance / z, starts),
                                 needed_replicas=needed if learnt else None,
                                 shows_replicas=not learnt and shows_replicas(claim.metric))


def _hinges_on_drift(claim: Claim, estimate: ProvisionalRatio) -> bool:
    """Whether the drift decides the verdict: without the drift the ratio would be on the other side of the limit, or
    the interval without its allowance for drift would not contain the limit."""
    beyond = log(estimate.ratio) - log(claim.ratio)
    margin = (log(estimate.interval.high) - log(estimate.interval.low) - abs(estimate.drift)) / 2
    return beyond * (beyond - estimate.drift) < 0 or abs(beyond) > margin


def _needed_start_sd(
    estimate: ProvisionalRatio, standard_error: float, starts: tuple[float, float]
) -> float | None:
    """The start-to-start sd that would decide a claim whose servers cannot be started again; None if none would.

    Args:
        estimate: the open ratio.
        standard_error: the largest standard error of the log ratio that decides the claim.
        starts: server starts of each side.
    """
    needed = (standard_error**2 - (estimate.pair_sd or 0.0) ** 2 / estimate.pairs) / (1 / starts[0] + 1 / starts[1])
    return floor(1000 * sqrt(needed)) / 1000 if needed > 0 else None
