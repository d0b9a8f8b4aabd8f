"""Every metric of a measurement: its mean over the runs, the interval of that mean, and what the baseline has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import isinf
from statistics import fmean

from pytest_llmperf.errors import BaselineError
from pytest_llmperf.metrics.failed_as_infinite import value_with_failures
from pytest_llmperf.metrics.registry import Metric, all_metrics, find, is_metric
from pytest_llmperf.metrics.server import SERVER
from pytest_llmperf.report.table import aligned
from pytest_llmperf.report.value_text import value_text
from pytest_llmperf.results.baseline import ReadBaseline, StoredMeasurement
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import kind_of
from pytest_llmperf.results.measurement import Measurement, Run, TestResult
from pytest_llmperf.results.sentences import change_text
from pytest_llmperf.stats.mean import t_interval
from pytest_llmperf.telemetry.replicas import total_increases

HEAD = ("metric", "mean", "90 % CI", "baseline", "change")
HIT_RATE = "prefix_cache_hit_rate"
CONFIDENCE = 0.95  # of each limit


def every_metric(test: TestResult, read: ReadBaseline) -> Iterator[str]:
    """A table for each measurement of a test; a baseline that cannot be read is reported by its own check."""
    for measurement in test.measurements:
        baseline = None
        with suppress(BaselineError):
            baseline = read(test.test, kind_of(measurement.conditions))
        compared = measurement.baseline
        stored = None if baseline is None or compared is None else baseline.measurements.get(compared)
        yield from ("", test.test, f"{measurement.engine}, {measurement.workload}")
        checks = comparisons_of(test, measurement)
        yield from (f"  {line}" for line in metric_table(measurement.runs, stored, checks))


def comparisons_of(test: TestResult, measurement: Measurement) -> list[CheckResult]:
    """Comparisons of a measurement with its baseline; empty where the checks of several measurements are alike."""
    return [check for check in test.checks if check.compares_with_baseline] if test.compared == (measurement,) else []


def metric_table(
    runs: Sequence[Run], stored: StoredMeasurement | None, checks: Sequence[CheckResult] = ()
) -> list[str]:
    """Aligned lines, one per metric that every run has: of served requests, and how these changed as they are judged.

    Args:
        runs: of the measurement.
        stored: the measurement's baseline; None: it has none.
        checks: comparisons of this measurement, whose baseline value and change are shown as they were judged.
    """
    return aligned([HEAD, *_rows(runs, stored, checks)])


def before_and_change(
    metric: Metric, runs: Sequence[Run], stored: StoredMeasurement | None, checks: Sequence[CheckResult]
) -> tuple[float | None, str]:
    """The value of the baseline and the change; as judged where a check compares the metric.

    Args:
        runs, stored, checks: as in `metric_table`.
    """
    for check in checks:
        if check.metric == metric.name and check.before is not None:
            return check.before, change_text(check)
    before = None if stored is None else baseline_mean(stored, metric.name)
    return before, _change(metric, _mean_with_failures(runs, metric.name), before, stored)


def _rows(
    runs: Sequence[Run], stored: StoredMeasurement | None, checks: Sequence[CheckResult]
) -> Iterator[tuple[str, ...]]:
    others = [find(name) for run in runs for name in run.metrics.values if is_metric(name)]
    for metric in dict.fromkeys([*all_metrics().values(), *others]):
        run_values = [run.metrics.value(metric.name) for run in runs]
        values = [value for value in run_values if value is not None]
        if not values or len(values) < len(run_values):
            continue
        before, change = before_and_change(metric, runs, stored, checks)
        yield (
            metric.name,
            metric.unit.show(fmean(values)),
            _interval(metric, values),
            "-" if before is None else metric.unit.show(before),
            change,
        )


def _mean_with_failures(runs: Sequence[Run], metric: str) -> float:
    return fmean(value_with_failures(run.metrics, metric) or 0.0 for run in runs)


def _change(metric: Metric, mean: float, before: float | None, stored: StoredMeasurement | None) -> str:
    if stored is None or not before:
        return "-"
    if stored.formulas.get(metric.name) != metric.formula_id:
        return "another formula"
    if isinf(mean):
        return "infinite"
    return f"{100 * (mean / before - 1):+.1f} %"


def baseline_mean(stored: StoredMeasurement, metric: str) -> float | None:
    """Mean of a metric over all stored runs; None if no stored run has the metric."""
    available_values = [value for session in stored.sessions for value in session.values(metric) if value is not None]
    return fmean(available_values) if available_values else None


def _interval(metric: Metric, values: Sequence[float]) -> str:
    if len(values) < 2 or len(set(values)) == 1:
        return ""
    interval = t_interval(values, CONFIDENCE, on_log=min(values) > 0)
    return metric.unit.show_range(interval.low, interval.high)


def replica_rows(measurement: Measurement) -> list[tuple[str, ...]]:
    """A row for each replica of a service: finished requests, prompt tokens and hit rate over all runs, after a head.

    Empty for a server alone.
    """
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(name for run in measurement.runs for name in run.replicas):
        sums = total_increases({str(number): run.replicas.get(name, {}) for number, run in enumerate(measurement.runs)})
        requests, prompt_tokens = sums.get("requests_finished"), sums.get("prompt_tokens")
        hit_rate = SERVER[HIT_RATE].take(sums)
        counts = ("-" if count is None else f"{count:.0f}" for count in (requests, prompt_tokens))
        rows.append((name, *counts, value_text(HIT_RATE, hit_rate)))
    return [("replica", "requests", "prompt tokens", "hit rate"), *rows] if rows else []
