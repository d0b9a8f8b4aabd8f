"""Other rules that people judge benchmarks by, on the same data: is today slower than what was stored?

All see today's first three runs, of metrics that are better when lower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.units import Direction
from pytest_llmperf.results.baseline import StoredMeasurement
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.stats.decision import LOOKS, SUITE_ALPHA

FIXED = "mean of 3 runs over all stored runs, +5 %"
PYTEST_BENCHMARK = "pytest-benchmark mean:5%, last session"
MANN_WHITNEY = "Mann–Whitney on pooled requests, p < 5 %"
MANN_WHITNEY_SHARED = "Mann–Whitney on pooled requests, p < 1 %/M"
RULES = (FIXED, PYTEST_BENCHMARK, MANN_WHITNEY, MANN_WHITNEY_SHARED)
THRESHOLD = 0.05


@dataclass(frozen=True, slots=True)
class RuleInputs:
    """The data of one metric for the alternative rules.

    Args:
        today, stored, last: a value per run: runs of this session, of all stored sessions, and of the last session.
        requests, last_requests: pooled contributions of the requests of this session and of the last session.
    """

    today: Sequence[float]
    stored: Sequence[float]
    last: Sequence[float]
    requests: Sequence[float]
    last_requests: Sequence[float]


def rule_inputs(today: Measurement, last: Measurement, stored: StoredMeasurement) -> dict[str, RuleInputs]:
    """Metric → inputs of the rules, for each primary latency that has a value in every run."""
    inputs_by_metric = {}
    for name in today.primaries:
        metric = find(name)
        if metric.family is None or metric.direction is not Direction.LOWER:
            continue
        today_values, last_values = (_complete_values(side.values(name)[:LOOKS[0]]) for side in (today, last))
        stored_values = [value for session in stored.sessions for value in session.values(name) if value is not None]
        requests = [_requests(side, metric.family) for side in (today, last)]
        if today_values and last_values and stored_values:
            inputs_by_metric[name] = RuleInputs(today_values, stored_values, last_values, *requests)
    return inputs_by_metric


def alarms(inputs: RuleInputs, suite_primaries: int) -> Mapping[str, bool]:
    """Rule → whether the rule reports a regression."""
    p = mann_whitney(inputs.requests, inputs.last_requests)
    return {
        FIXED: fmean(inputs.today) > (1 + THRESHOLD) * fmean(inputs.stored),
        PYTEST_BENCHMARK: percent_over(fmean(inputs.today), fmean(inputs.last)) > 100 * THRESHOLD,
        MANN_WHITNEY: p < 0.05,
        MANN_WHITNEY_SHARED: p < SUITE_ALPHA / suite_primaries,
    }


def percent_over(current: float, stored: float) -> float:
    """What `--benchmark-compare-fail=mean:5%` compares with 5 (pytest-benchmark's PercentageRegressionCheck)."""
    return current / stored * 100 - 100 if stored else float("inf")


def mann_whitney(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """One-sided p of "ours are not larger", by the normal approximation."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(ours, theirs, alternative="greater", method="asymptotic").pvalue)


def _complete_values(values: Sequence[float | None]) -> list[float]:
    """All of them, or nothing."""
    present_values = [value for value in values if value is not None]
    return present_values if len(present_values) == len(values) else []


def _requests(measurement: Measurement, family: str) -> list[float]:
    return [value for metrics in measurement.metrics[:LOOKS[0]] for value in metrics.samples(family)]
