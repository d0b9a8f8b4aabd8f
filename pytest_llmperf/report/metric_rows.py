"""Every metric of a measurement: its mean over the runs, the interval of that mean, and what the baseline has.

Terminal and page show the same cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isinf
from statistics import fmean

from pytest_llmperf.errors import BaselineError
from pytest_llmperf.metrics.registry import Metric, all_metrics, find, is_metric
from pytest_llmperf.metrics.server import SERVER
from pytest_llmperf.report.table import aligned, value_text
from pytest_llmperf.results.baseline import ReadBaseline, StoredMeasurement
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import kind_of
from pytest_llmperf.results.measurement import Measurement, TestResult, mean_of_runs
from pytest_llmperf.results.sentences import change_text
from pytest_llmperf.stats.interval import t_interval
from pytest_llmperf.telemetry.replicas import total_increases

HEAD = ("metric", "mean", "90 % CI", "baseline", "change")
#: Metric of a replica → head of its column.
OF_REPLICA = {"prefix_cache_hit_rate": "hit rate", "queue_time_mean": "mean queue time", "preemptions": "preemptions"}
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
        yield from (f"  {line}" for line in metric_table(measurement, stored, checks))


def comparisons_of(test: TestResult, measurement: Measurement) -> list[CheckResult]:
    """Comparisons of a measurement with its baseline; empty if the checks of several measurements are alike."""
    return [check for check in test.checks if check.compares_with_baseline] if test.compared == (measurement,) else []


@dataclass(frozen=True, slots=True)
class MetricCells:
    """A metric of a measurement as every report shows it; "" for a missing value.

    Args:
        mean: over the runs, with failed requests as infinitely slow; as judged where a check compares the metric.
        baseline: mean over all stored runs, or as judged.
        change: from the baseline to the mean.
    """

    mean: str
    baseline: str
    change: str


def metric_cells(
    name: str, measurement: Measurement, stored: StoredMeasurement | None, checks: Sequence[CheckResult] = ()
) -> MetricCells:
    """The cells of a metric.

    Args:
        name: name of the metric. A run file of another version of the plugin may have unknown names.
        measurement: the measurement.
        stored: the measurement's baseline; None: it has none.
        checks: comparisons of this measurement.
    """
    judged = next((check for check in checks if check.metric == name and check.before is not None), None)
    value = mean_of(name, measurement) if judged is None else judged.after
    shown = "infinite" if value is not None and isinf(value) else value_text(name, value)
    if stored is None or value is None or not is_metric(name):
        return MetricCells(shown, "", "")
    before = baseline_mean(stored, name) if judged is None else judged.before
    change = _change(find(name), value, before, stored) if judged is None else change_text(judged)
    return MetricCells(shown, "" if before is None else value_text(name, before), change)


def mean_of(name: str, measurement: Measurement) -> float | None:
    """Mean over the runs; None if a run lacks the metric, which may be one that only another version knows."""
    if is_metric(name):
        return measurement.value_with_failures(name)
    return mean_of_runs([run.metrics.values.get(name) for run in measurement.runs])


def metric_table(
    measurement: Measurement, stored: StoredMeasurement | None, checks: Sequence[CheckResult] = ()
) -> list[str]:
    """Aligned lines, one per metric that every run has; arguments as in `metric_cells`."""
    rows = [HEAD]
    others = [find(name) for run in measurement.runs for name in run.metrics.values if is_metric(name)]
    for metric in dict.fromkeys([*all_metrics().values(), *others]):
        cells = metric_cells(metric.name, measurement, stored, checks)
        if mean_of(metric.name, measurement) is not None:
            interval = _interval(metric, measurement.values_with_failures(metric.name))
            rows.append((metric.name, cells.mean, interval, cells.baseline or "-", cells.change or "-"))
    return aligned(rows)


def _change(metric: Metric, mean: float, before: float | None, stored: StoredMeasurement) -> str:
    if not before:
        return ""
    if stored.formulas.get(metric.name) != metric.formula_id:
        return "another formula"
    if isinf(mean):
        return "infinite"
    return f"{100 * (mean / before - 1):+.1f} %"


def baseline_mean(stored: StoredMeasurement, metric: str) -> float | None:
    """Mean of a metric over all stored runs; None if no stored run has the metric."""
    available_values = [value for session in stored.sessions for value in session.values(metric) if value is not None]
    return fmean(available_values) if available_values else None


def _interval(metric: Metric, run_values: Sequence[float | None]) -> str:
    """Interval of the mean; "" for equal or infinite values."""
    values = [value for value in run_values if value is not None and not isinf(value)]
    if len(values) < max(2, len(run_values)) or len(set(values)) == 1:
        return ""
    interval = t_interval(values, CONFIDENCE, on_log=min(values) > 0)
    return metric.unit.show_range(interval.low, interval.high)


def replica_rows(measurement: Measurement) -> list[tuple[str, ...]]:
    """A row for each replica of a service over all runs, after a head: finished requests, prompt tokens, hit rate, mean
    time in the queue, preemptions.

    Empty for a server alone.
    """
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(name for run in measurement.runs for name in run.replicas):
        sums = total_increases({str(number): run.replicas.get(name, {}) for number, run in enumerate(measurement.runs)})
        counts = ("-" if count is None else f"{count:.0f}"
                  for count in (sums.get("requests_finished"), sums.get("prompt_tokens")))
        rows.append((name, *counts, *(value_text(metric, SERVER[metric].take(sums)) for metric in OF_REPLICA)))
    return [("replica", "requests", "prompt tokens", *OF_REPLICA.values()), *rows] if rows else []
