"""What the template is filled with: words and tables; numbers for charts packed apart."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.errors import BaselineError
from pytest_llmperf.metrics import find, is_metric
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.report.html.charts import charts, labels
from pytest_llmperf.report.html.history import History, history
from pytest_llmperf.report.html.servers import ServerLog, servers_of
from pytest_llmperf.report.html.words import in_words, title
from pytest_llmperf.report.value_text import value_text
from pytest_llmperf.results.baseline import ReadBaseline
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.measurement import Measurement, TestResult
from pytest_llmperf.results.reader import read_session

_DIGEST = re.compile(r"[0-9a-f]{40,}")


@dataclass(frozen=True, slots=True)
class Side:
    """One measurement in words."""

    label: str
    measurement: Measurement
    history: History | None

    @property
    def hardware(self) -> str:
        return self.measurement.conditions.get("hardware", "unknown")


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A metric of every run: name, formula, and per side the value of each run, with unit."""

    name: str
    formula: str
    cells: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class TestPage:
    """One test: words, tables, and the numbers behind its charts."""

    anchor: str
    title: str
    test: TestResult
    claims: tuple[tuple[CheckResult, str], ...]
    sides: tuple[Side, ...]
    differing: tuple[tuple[str, tuple[str, ...]], ...]
    shared: tuple[tuple[str, str], ...]
    metrics: tuple[MetricRow, ...]
    servers: tuple[ServerLog, ...]
    drawn: Mapping[str, object]
    problem: str


def test_page(test: TestResult, number: int, read: ReadBaseline) -> TestPage:
    """Everything about one test; what cannot be read is said, and the rest is there."""
    names = labels(test.measurements)
    histories = [
        history(test, measurement, name, read) if measurement.baseline is not None else None
        for name, measurement in zip(names, test.measurements, strict=True)
    ]
    problem, drawn = "", dict[str, object]()
    try:
        drawn = charts(test)
    except BaselineError as error:
        problem = str(error)
    drawn["history"] = [
        {"side": history.side, **chart} for history in histories if history is not None for chart in history.charts
    ]
    differing, shared = _conditions([measurement.conditions for measurement in test.measurements])
    return TestPage(
        anchor=f"test-{number}",
        title=title(test.test),
        test=test,
        claims=tuple((check, in_words(check)) for check in test.checks),
        sides=tuple(Side(*side) for side in zip(names, test.measurements, histories, strict=True)),
        differing=differing,
        shared=shared,
        metrics=_metrics(test.measurements),
        servers=servers_of(test),
        drawn=drawn,
        problem=problem,
    )


def _conditions(
    each: Sequence[Mapping[str, str]]
) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], tuple[tuple[str, str], ...]]:
    """The conditions that differ between the sides, and the conditions that are equal on all sides."""
    names = sorted({name for conditions in each for name in conditions})
    rows = [(name, tuple(_short(conditions.get(name, "absent")) for conditions in each)) for name in names]
    differing = tuple(row for row in rows if len(set(row[1])) > 1)
    return differing, tuple((name, values[0]) for name, values in rows if len(set(values)) == 1)


def _short(value: str) -> str:
    """A digest needs few digits to be told from another."""
    return f"{value[:12]}…" if _DIGEST.fullmatch(value) else value


def _metrics(measurements: Sequence[Measurement]) -> tuple[MetricRow, ...]:
    runs = [run for measurement in measurements for run in measurement.runs]
    names = dict.fromkeys(name for run in runs for name, value in run.metrics.values.items() if value is not None)
    return tuple(
        MetricRow(
            name,
            _formula(name),
            tuple(
                tuple(value_text(name, run.metrics.values.get(name)) for run in measurement.runs)
                for measurement in measurements
            ),
        )
        for name in names
    )


def _formula(name: str) -> str:
    return find(name).formula if is_metric(name) else ""


def counts(tests: Sequence[TestResult]) -> list[tuple[Verdict, int]]:
    """How many tests came to which verdict, worst first."""
    count_by_verdict = Counter(test.verdict for test in tests)
    return sorted(count_by_verdict.items(), key=lambda pair: -pair[0].severity)


def session_facts(folders: Sequence[Path]) -> list[tuple[str, str]]:
    """Facts about the session, from the first run folder that has a session file."""
    content = next((session_file for folder in folders if (session_file := read_session(folder))), {})
    return [(name, str(value)) for name, value in content.items() if not isinstance(value, dict | list)]


def pack(content: object) -> str:
    """JSON that the page's script unpacks when somebody looks at it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
