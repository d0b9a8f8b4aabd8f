"""Counts failed requests as infinitely slow in judged latencies."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isinf

from pytest_llmperf.metrics.families import FAMILIES, turn_names
from pytest_llmperf.metrics.recovery import RECOVERY
from pytest_llmperf.metrics.registry import find, find_family
from pytest_llmperf.metrics.run import RunMetrics
from pytest_llmperf.metrics.summary import statistic, summarise
from pytest_llmperf.model.record import RequestRecord, RunRecords


def value_with_failures(run: RunMetrics, name: str) -> float | None:
    """A metric with failed requests counted as infinitely slow, in the metric's unit.

    One failed request makes a mean infinite. A median becomes infinite when half of the requests fail. None if the
    metric is unavailable in this run.

    Raises:
        SloError: the metric does not exist.
    """
    metric = find(name)
    if run.judged is not None:
        value = run.judged.get(metric.name, run.value(name))
        return inf if value is None and metric.name in run.judged else value
    if metric.name == RECOVERY and run.value(RECOVERY) is None and RECOVERY in run.values:
        return inf
    if metric.family is None or metric.stat is None or _all_served(run):
        return run.value(name)
    return statistic(sample_with_failures_ms(run, metric.family), metric.stat)


def statistics_with_failures(run: RunMetrics) -> dict[str, float | None]:
    """Judged value of every statistic of the latencies that failed requests lack; None for an infinite value."""
    if run.judged is not None:
        return dict(run.judged)
    return run.source.derived(_statistics_with_failures)  # each run is written again after every other


def values_with_failures(run: RunMetrics) -> dict[str, float | None]:
    """Every metric as a baseline stores it, in its unit; an infinite statistic is None."""
    return run.all() | statistics_with_failures(run)


def _statistics_with_failures(records: Sequence[RequestRecord]) -> dict[str, float | None]:
    run = RunMetrics(RunRecords(records), {})
    if _all_served(run):
        return {}
    families = [*FAMILIES, *(f"ttft_{turn}" for turn in turn_names(records))]
    statistics = {f"{family}_{stat}": value for family in families if any(missing_observations(run, family).values())
                  for stat, value in summarise(sample_with_failures_ms(run, family)).items()}
    return {name: None if value is None or isinf(value) else value for name, value in statistics.items()}


def infinite_runs(name: str, runs: Sequence[RunMetrics]) -> list[RunMetrics]:
    """The runs in which failed requests make a metric infinite."""
    return [run for run in runs if isinf(value_with_failures(run, name) or 0.0)]


def _all_served(run: RunMetrics) -> bool:
    return all(record.ok or (record.arrivals_ns and not record.failed) for record in run.records)


def sample_with_failures_ms(run: RunMetrics, family: str) -> list[float]:
    """The sample with failed requests as infinity."""
    return [*run.samples(family), *[float("inf")] * sum(missing_observations(run, family).values())]


def missing_observations(run: RunMetrics, family: str) -> dict[int, int]:
    """Number of observations that each failed request, by position, would have contributed.

    A request contributes its requested number of gaps, times the number of gaps per requested gap in the served
    requests, but at least one observation. A failed request for a single token has no gap, so it contributes no
    observation to a latency between tokens.
    """
    by_request = run.by_request(family) or ()
    between, per_request = find_family(family).between_tokens, find_family(family).per_request
    served = [(len(values), run.records[at].asked_output_tokens) for at, values in enumerate(by_request)
              if values is not None]
    requested_gaps = sum(max(0, tokens - 1) for _, tokens in served)
    per_token = sum(gaps for gaps, _ in served) / requested_gaps if requested_gaps else 1.0

    def brought(tokens: int) -> int:
        if between and tokens < 2:
            return 0
        return 1 if per_request else max(1, round(per_token * (tokens - 1)))

    return {at: brought(run.records[at].asked_output_tokens) for at, values in enumerate(by_request) if values is None}
