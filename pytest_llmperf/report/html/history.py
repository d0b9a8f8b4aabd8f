"""A measurement beside its stored baseline: the values of each session, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf

from pytest_llmperf.errors import BaselineError, SloError
from pytest_llmperf.metrics import Unit, find
from pytest_llmperf.report.html.figures import figure
from pytest_llmperf.report.html.plot import Axis, Line, Mark, linear_axis, plot
from pytest_llmperf.report.metric_rows import comparisons_of
from pytest_llmperf.results.baseline import ReadBaseline, StoredMeasurement, StoredSession
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import Difference, build_changes, differences, kind_of
from pytest_llmperf.results.measurement import Measurement, TestResult

MOST_SESSION_LABELS = 2


@dataclass(frozen=True, slots=True)
class History:
    """The baseline of one measurement.

    Args:
        stored: the stored sessions; None without a readable baseline.
        problem: why the baseline cannot be read; "" for a readable baseline.
        different: conditions whose values differ from the baseline's.
        build: field of the build under test → its other stored values, then today's value.
        charts: a figure as HTML per primary metric.
    """

    stored: StoredMeasurement | None = None
    problem: str = ""
    different: tuple[Difference, ...] = ()
    build: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    charts: tuple[str, ...] = ()


def history(test: TestResult, measurement: Measurement, side: str, read: ReadBaseline) -> History:
    """The baseline of a measurement as it is stored now.

    Args:
        side: label of the measurement.
        read: gives the test's baseline.
    """
    try:
        baseline = read(test.test, kind_of(measurement.conditions))
        stored = baseline.measurements.get(measurement.baseline or "") if baseline is not None else None
        if stored is None:
            return History()
        different = differences(stored, measurement.conditions, measurement.primaries, workload=measurement.workload)
        build = build_changes(stored, stored.sessions, measurement.conditions)
    except (BaselineError, SloError) as error:
        return History(problem=str(error))
    checks = {check.metric: check for check in comparisons_of(test, measurement)}
    drawn = tuple(
        _chart(metric, measurement, side, stored, checks.get(metric))
        for metric in measurement.primaries if metric in stored.metrics
    )
    return History(stored, "", different, build, drawn)


def _chart(
    metric: str, measurement: Measurement, side: str, stored: StoredMeasurement, check: CheckResult | None
) -> str:
    """The values of each stored session, then of this run."""
    unit = find(metric).unit
    scale = 100 if unit is Unit.SHARE else 1

    def shown(value: float | None) -> float | None:
        """The scaled value for the chart; None for a missing value and for infinity (failed requests), which no axis
        can show."""
        return None if value is None or isinf(value) else float(f"{value * scale:.5g}")

    sessions = stored.sessions
    groups = [list(map(shown, session.values(metric))) for session in sessions]
    today = list(map(shown, measurement.values_with_failures(metric)))
    lines = [Line("stored runs", *_columns(groups), 0, marks="round", joined=False),
             Line("this run", *_columns([*([] for _ in groups), today]), 1, marks="square", joined=False)]
    levels = {} if check is None else {"baseline": shown(check.before), "tolerated": shown(_limit(check))}
    marks = [Mark(value, name) for name, value in levels.items() if value is not None]
    y = linear_axis([*(value for line in lines for value in line.y), *levels.values()], unit.value)
    chart = plot(lines, _sessions_axis(sessions), y, f"Baseline of {metric}", marks=marks)
    return figure(f"Baseline of {metric}", f"{side}, {unit.value}; a mark a run", chart)


def _columns(groups: Sequence[Sequence[float | None]]) -> tuple[list[float | None], list[float | None]]:
    points = [(float(place), value) for place, group in enumerate(groups) for value in group]
    return [place for place, _ in points], [value for _, value in points]


def _sessions_axis(sessions: Sequence[StoredSession]) -> Axis:
    """A place for each session, with the dates of a few, and a place for this run."""
    every = -(-len(sessions) // MOST_SESSION_LABELS)
    dates = [(place, f"{session.date} {_short(session.commit)}")
             for place, session in enumerate(sessions) if place % every == 0]
    if dates and len(sessions) - dates[-1][0] <= every / 2:
        dates.pop()
    return Axis(-0.5, len(sessions) + 0.5, (*dates, (len(sessions), "this run")))


def _limit(check: CheckResult) -> float | None:
    """The value that the tolerated change allows; a change of a share is in points."""
    if check.before is None or check.limit is None:
        return None
    return check.before + check.limit if check.unit is Unit.POINTS else check.before * (1 + check.limit)


def _short(commit: str | None) -> str:
    """A commit as a chart's axis has room for."""
    return "" if commit is None else commit[:7] + ("*" if commit.endswith("-dirty") else "")
