"""A measurement beside its stored baseline: the values of each session, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf

from pytest_llmperf.errors import BaselineError, SloError
from pytest_llmperf.metrics import Unit, find
from pytest_llmperf.report.metric_rows import comparisons_of
from pytest_llmperf.results.baseline import ReadBaseline, StoredMeasurement
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import Difference, build_changes, differences, kind_of
from pytest_llmperf.results.measurement import Measurement, TestResult


@dataclass(frozen=True, slots=True)
class History:
    """The baseline of one measurement.

    Args:
        side: name of the measurement in the charts.
        stored: the stored sessions; None without a readable baseline.
        problem: why the baseline cannot be read; "" for a readable baseline.
        different: conditions whose values differ from the baseline's.
        build: field of the build under test → its other stored values, then today's value.
        charts: one per primary metric.
    """

    side: str
    stored: StoredMeasurement | None = None
    problem: str = ""
    different: tuple[Difference, ...] = ()
    build: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    charts: tuple[dict[str, object], ...] = ()


def history(test: TestResult, measurement: Measurement, side: str, read: ReadBaseline) -> History:
    """The baseline of a measurement as it is stored now."""
    try:
        baseline = read(test.test, kind_of(measurement.conditions))
        stored = baseline.measurements.get(measurement.baseline or "") if baseline is not None else None
        if stored is None:
            return History(side)
        different = differences(stored, measurement.conditions, measurement.primaries)
        build = build_changes(stored, stored.sessions, measurement.conditions)
    except (BaselineError, SloError) as error:
        return History(side, problem=str(error))
    checks = {check.metric: check for check in comparisons_of(test, measurement)}
    drawn = tuple(
        _chart(metric, measurement, stored, checks.get(metric))
        for metric in measurement.primaries if metric in stored.metrics
    )
    return History(side, stored, "", different, build, drawn)


def _chart(
    metric: str, measurement: Measurement, stored: StoredMeasurement, check: CheckResult | None
) -> dict[str, object]:
    unit = find(metric).unit
    scale = 100 if unit is Unit.SHARE else 1

    def shown(value: float | None) -> float | None:
        """None where the value is missing, or infinite because requests failed: no axis can show infinity."""
        return None if value is None or isinf(value) else float(f"{value * scale:.5g}")

    return {
        "metric": metric,
        "unit": unit.value,
        "sessions": [
            {"label": f"{session.date} {_short(session.commit)}", "values": list(map(shown, session.values(metric)))}
            for session in stored.sessions
        ],
        "before": None if check is None else shown(check.before),
        "limit": None if check is None else shown(_limit(check)),
        "today": list(map(shown, measurement.values_with_failures(metric))),
    }


def _limit(check: CheckResult) -> float | None:
    """The value that the tolerated change allows; a change of a share is in points."""
    if check.before is None or check.limit is None:
        return None
    return check.before + check.limit if check.unit is Unit.POINTS else check.before * (1 + check.limit)


def _short(commit: str | None) -> str:
    """A commit as a chart's axis has room for."""
    return "" if commit is None else commit[:7] + ("*" if commit.endswith("-dirty") else "")
