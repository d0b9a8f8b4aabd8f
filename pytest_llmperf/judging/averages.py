"""Judges averages: means, medians, throughputs, rates of the server. Intervals over the seeds that were sent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import isfinite

from pytest_llmperf.judging.dependence import gap_segments_ns, mean_concurrency, observations_per_step
from pytest_llmperf.judging.outcome import each_run_result, requirement_result, unavailable_result
from pytest_llmperf.judging.percentiles import body_limit_ms, exceedances_by_request, views
from pytest_llmperf.judging.sample import Sample, latency_limits, unseen_share
from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.metrics import Direction, RunMetrics, Unit, window_rates
from pytest_llmperf.metrics.failed_as_infinite import value_with_failures
from pytest_llmperf.metrics.families import output_tokens, prompt_tokens, turns_of
from pytest_llmperf.metrics.recovery import RECOVERY
from pytest_llmperf.metrics.registry import find, find_family
from pytest_llmperf.metrics.summary import statistic
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.limits import (
    BeyondLimit,
    LimitInInterval,
    NoInterval,
    NoRequestServed,
    NotRecovered,
    RequestsDependent,
    StatisticInfinite,
)
from pytest_llmperf.results.check import CheckResult, Facts
from pytest_llmperf.slo.model import Comparison, Slo
from pytest_llmperf.stats.design import BODY_SHARE, effective_fraction, effective_n
from pytest_llmperf.stats.exceedance import GROSS
from pytest_llmperf.stats.interval import Interval, mean, share_interval, t_interval, wider
from pytest_llmperf.stats.segments import batches, cosines_for, independent_segments, slow_interval

#: Parts of a run, each of so many served requests at least; a run of fewer parts than `_FEWEST_PARTS` is not cut.
_PARTS, _FEWEST_PARTS, _REQUESTS_PER_PART = 10, 5, 10
#: Of served requests: nothing served is none of them, although the run then has no duration to divide by.
SERVED_PER_S = (
    "request_throughput", "conversation_throughput", "output_throughput", "total_token_throughput", "goodput",
)  # fmt: skip
#: Of served tokens: with nothing served each token takes more than any limit.
_PER_SERVED_TOKEN = ("joules_per_token", "cost_per_million_tokens")
#: Shares that no request decides by itself.
_NOT_OF_REQUESTS = ("kv_usage_peak", "expert_balance", "gpu_utilization")
_ABOVE_ZERO = (Unit.MS, Unit.S, Unit.J, Unit.J_PER_TOKEN, Unit.COST)
_WORSE_THAN = {Direction.LOWER: Comparison.AT_MOST, Direction.HIGHER: Comparison.AT_LEAST}


def judge_average(slo: Slo, sample: Sample, confidence: float) -> CheckResult:
    """PASS if the whole interval meets the limit, FAIL if the whole interval misses the limit, else INCONCLUSIVE."""
    if (unserved := _failure_without_answers(slo, sample)) is not None:
        return unserved
    values = [value for value in _values_with_failures(slo, sample) if value is not None]
    if len(values) < len(sample.runs):
        return unavailable_result(slo, len(sample.runs) - len(values), len(sample.runs))
    failures = _failures(slo, sample)
    facts = sample.facts | failures
    if infinite := sum(not isfinite(value) for value in values):
        statistic = "mean" if find(slo.metric).stat == "mean" else "median"
        unrecovered = slo.metric == RECOVERY
        cause = NotRecovered(infinite, len(values)) if unrecovered else _infinite(statistic, failures)
        return requirement_result(slo, Verdict.FAIL, cause, facts=facts)
    interval = interval_over_seeds(slo, values, sample, confidence) or interval_within_seed(
        slo, values, sample, confidence
    )
    estimate = mean(list(map(mean, sample.by_seed(values))))
    if interval is None:
        return requirement_result(slo, Verdict.INCONCLUSIVE, NoInterval(len(sample.runs)), estimate=estimate,
                                  facts=facts)
    verdict = (interval.below if slo.comparison is Comparison.AT_MOST else interval.above)(slo.limit)
    gross = verdict is Verdict.FAIL and interval.low > GROSS * slo.limit and slo.comparison is Comparison.AT_MOST
    if not (gross or verdict is Verdict.INCONCLUSIVE) and len(set(sample.seeds)) == 1 and _dependent(slo, sample):
        return requirement_result(slo, Verdict.INCONCLUSIVE, RequestsDependent(), estimate=estimate, facts=facts)
    if verdict is Verdict.PASS:
        facts |= sample.unseen
        if find(slo.metric).family is not None and find(slo.metric).stat == "mean":
            facts["unseen_requests"] = unseen_share(sum(record.ok for run in sample.runs for record in run.records))
    decided = BeyondLimit() if verdict is Verdict.FAIL else LimitInInterval()
    return requirement_result(slo, verdict, decided, estimate=estimate, interval=interval, facts=facts)


def judge_exact(slo: Slo, sample: Sample) -> CheckResult:
    """Judges counts, maxima and equalities, which have no interval. Each run must meet the limit."""
    if (unserved := _failure_without_answers(slo, sample)) is not None:
        return unserved
    values = [value for value in sample.values(slo) if value is not None]
    if len(values) < len(sample.runs):
        return unavailable_result(slo, len(sample.runs) - len(values), len(sample.runs))
    facts: Facts = sample.facts | {"exact": True}
    failures = _failures(slo, sample) if find(slo.metric).stat == "max" else {}
    if failures and slo.comparison is Comparison.AT_MOST:
        return requirement_result(slo, Verdict.FAIL, _infinite("max", failures), estimate=max(values),
                                  facts=facts | failures)
    return each_run_result(slo, values, facts)


def interval_over_seeds(slo: Slo, values: Sequence[float], sample: Sample, confidence: float) -> Interval | None:
    """The widest limits over seeds, over server starts, and from slow changes along the runs; None for a single seed.

    Few runs that were lucky look alike. Example: three runs of 300 requests behind a queue at 70 % load, mean TTFT at
    its exact limit. 11 % pass by the seeds alone, 8 % with slow changes, and 6 % with the skewness of slow changes.
    """
    by_seed = list(map(mean, sample.by_seed(values)))
    if len(by_seed) < 2:
        return None
    unit = find(slo.metric).unit
    on_log = unit in _ABOVE_ZERO and min(values) > 0
    interval = t_interval(by_seed, confidence, on_log=on_log)
    if (slow := _slow(slo, sample, mean(by_seed), confidence)) is not None:
        interval = wider(interval, slow)
    return _clipped(_wider_over_starts(interval, values, sample, confidence, on_log=on_log), unit)


def _slow(slo: Slo, sample: Sample, centre: float, confidence: float) -> Interval | None:
    """Student's interval from slow changes along runs of several seeds; None of what has no parts."""
    cut = [_by_request(slo, run) for run in sample.runs]
    family = find(slo.metric).family
    if family is None or not all(cut):
        return None
    parts = min(map(len, cut))
    rows = np.array([np.mean([run[:parts] for run in of_seed], axis=0) for of_seed in sample.by_seed(cut)])
    return slow_interval(centre, rows, cosines_for(_separate(sample.runs, family), len(rows)), confidence)


def _separate(runs: Sequence[RunMetrics], family: str) -> int:
    """Parts of the shortest run that hardly share a request."""
    return independent_segments([len(run.records) for run in runs], mean_concurrency(runs, family))


def _dependent(slo: Slo, sample: Sample) -> bool:
    """Whether neighbouring requests are shown to be dependent, as in `design.effective_fraction`."""
    family = find(slo.metric).family
    if family is None or (quartile_ms := body_limit_ms(sample.runs, family)) is None:
        return False
    over, concurrency = (
        [exceedances_by_request(run, family, quartile_ms) or [] for run in sample.runs],
        mean_concurrency(sample.runs, family),
    )
    fraction = effective_fraction(
        views(sample.runs, family, quartile_ms, over, concurrency),
        sample.starts,
        BODY_SHARE,
        0.95,
        seeds=sample.seeds,
        per_step=observations_per_step(sample.runs, family, concurrency),
    )
    return not fraction.bounded


def _wider_over_starts(
    interval: Interval, values: Sequence[float], sample: Sample, confidence: float, *, on_log: bool
) -> Interval:
    """The wider of two intervals: the given interval, and Student's t interval over server starts around its centre."""
    by_start = list(map(mean, sample.by_start(values)))
    if len(by_start) < 2:
        return interval
    centre = mean(list(map(mean, sample.by_seed(values))))
    return wider(interval, t_interval(by_start, confidence, on_log=on_log, centre=centre))


def interval_within_seed(slo: Slo, values: Sequence[float], sample: Sample, confidence: float) -> Interval | None:
    """Interval for runs of a single seed: the wider of the intervals within the runs and the interval between the runs.
    """
    run_intervals = [interval_within_run(slo, run, confidence) for run in sample.runs]
    intervals = [interval for interval in run_intervals if interval is not None]
    if len(intervals) < len(run_intervals) or len(values) == 1:
        return run_intervals[0] if len(values) == 1 else None
    below = max(value - interval.low for value, interval in zip(values, intervals, strict=True))
    above = max(interval.high - value for value, interval in zip(values, intervals, strict=True))
    unit, middle = find(slo.metric).unit, mean(values)
    on_log = unit in _ABOVE_ZERO and min(values) > 0
    widest = Interval(middle - below, middle + above, confidence)
    widest = wider(widest, t_interval(values, confidence, on_log=on_log))
    return _clipped(_wider_over_starts(widest, values, sample, confidence, on_log=on_log), unit)


def interval_within_run(slo: Slo, run: RunMetrics, confidence: float) -> Interval | None:
    """Interval from the segments of one run; None if the run cannot be split.

    A share of tokens is treated as if each request decided all of its tokens together. This is conservative, because no
    variable between 0 and 1 has a larger variance than a variable of zeros and ones with the same mean. Kish's
    effective sample size accounts for requests of different lengths.
    """
    metric, value = find(slo.metric), run.value(slo.metric)
    if metric.unit is Unit.SHARE and metric.name not in _NOT_OF_REQUESTS and value is not None:
        weights = _token_weights(metric.name, run)
        n = effective_n(weights) if weights else 0.0
        return share_interval(min(1.0, value) * n, n, confidence) if n else None
    cut = [np.array([replicates]) for replicates in _replicates(slo, run)]
    separate = _PARTS if metric.family is None else _separate([run], metric.family)
    intervals = [slow_interval(float(row.mean()) if value is None else value, row, cosines_for(separate, 1), confidence)
                 for row in cut]
    return _clipped(reduce(wider, intervals), metric.unit) if intervals else None


def _token_weights(share: str, run: RunMetrics) -> list[int]:
    """How much each served request weighs in a share of tokens: of its prompt in a hit rate, of its answer otherwise.

    All alike where the server did not say.
    """
    named = turns_of(share)
    served = [record for record in run.records if record.ok and (named is None or record.turn in named[1])]
    tokens_of = prompt_tokens if "hit_rate" in share else output_tokens
    weights = [tokens for record in served if (tokens := tokens_of(record))]
    return weights if len(weights) == len(served) else [1] * len(served)


def _replicates(slo: Slo, run: RunMetrics) -> list[Sequence[float]]:
    """The metric in each part of the run, for each way to cut it: requests by their order, gaps by time as well."""
    metric = find(slo.metric)
    if metric.family is None or metric.stat is None:
        rates = window_rates(run, slo.metric, latency_limits(slo), _PARTS)
        return [] if rates is None else [rates]
    if not (by_request := _by_request(slo, run)):
        return []
    if find_family(metric.family).per_request:
        return [by_request]
    by_time = [statistic((part / 1e6).tolist(), metric.stat) for part in gap_segments_ns(run, metric.family, _PARTS)]
    return [by_request, [value for value in by_time if value is not None]]


def _by_request(slo: Slo, run: RunMetrics) -> list[float]:
    """The metric in each part of the run's requests, by intended send time; empty if it cannot be cut."""
    metric = find(slo.metric)
    by_request = run.by_request(metric.family or "ttft") or ()
    served = [values for values in by_request if values]
    parts = min(_PARTS, len(served) // _REQUESTS_PER_PART)
    # A part of survivors knows nothing of those that failed, which count in the value.
    if None in by_request or parts < _FEWEST_PARTS:
        return []
    cut = [[value_ns / 1e6 for values in batch for value_ns in values] for batch in batches(served, parts)]
    return [value for part in cut if (value := statistic(part, metric.stat or "mean")) is not None]


def _clipped(interval: Interval, unit: Unit) -> Interval:
    top = 1.0 if unit is Unit.SHARE else float("inf")
    return Interval(max(0.0, interval.low), min(top, interval.high), interval.confidence)


def _failure_without_answers(slo: Slo, sample: Sample) -> CheckResult | None:
    """FAIL where a run answered nothing: what never ended took longer than any limit, and at no rate.

    Such a run has neither a latency nor a duration; "unavailable" would be an ERROR, and hide the FAIL of error_rate.
    """
    metric = find(slo.metric)
    latency = ((metric.family is not None and not find_family(metric.family).with_failed)
               or metric.name in _PER_SERVED_TOKEN)
    limited = {Direction.LOWER: latency, Direction.HIGHER: metric.name in SERVED_PER_S}.get(metric.direction, False)
    empty = sum(bool(run.records) and not any(record.ok for record in run.records) for run in sample.runs)
    if not (limited and empty) or slo.comparison is not _WORSE_THAN[metric.direction]:
        return None
    cause = NoRequestServed(empty, len(sample.runs), sample.failures.get("failure_reasons"))
    return requirement_result(slo, Verdict.FAIL, cause, facts=sample.facts | sample.failures)


def _values_with_failures(slo: Slo, sample: Sample) -> list[float | None]:
    """The metric of each run. In a mean or median of a latency, failed requests count as infinitely slow."""
    if find(slo.metric).family is None and slo.metric != RECOVERY:
        return sample.values(slo)
    return [value_with_failures(run, slo.metric) for run in sample.runs]


def _infinite(statistic: str, failures: Facts) -> StatisticInfinite:
    return StatisticInfinite(statistic, failures.get("failed_requests", 0), failures.get("failure_reasons"))


def _failures(slo: Slo, sample: Sample) -> Facts:
    """Failed requests that have no value of this latency and count as infinitely slow; empty if there are none."""
    family = find(slo.metric).family
    return {} if family is None or find_family(family).with_failed else sample.failures
