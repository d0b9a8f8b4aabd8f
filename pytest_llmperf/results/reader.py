"""A run folder, read back: what show, diff, report and export work on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pytest_llmperf.errors import UsageError
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult, verdict_of_test
from pytest_llmperf.results.check_json import check_from
from pytest_llmperf.results.fresh import SCHEMA, numbers, shares
from pytest_llmperf.results.requests_file import Requests, decode
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.results.strict_json import Node, parse
from pytest_llmperf.stats.prior import Margins

if TYPE_CHECKING:
    from pytest_llmperf.results.measurement import Measurement

REPAIR = "It is no run file of this version; run the test again."
SESSION_FILE = "session.json"
#: Sampled beside a run: what a run file calls it.
TELEMETRY = ("server", "gpu")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One run.

    Args:
        seed, start_id, started_at, counters: as of `results.measurement.Run`.
        metrics: every metric by name; latencies are those of served requests.
        apart: the latencies that failed requests move, as they are judged; None where one has no end.
        requests: the file of its requests; None where it was not kept.
        telemetry: source ("server", "gpu") → column with a unit suffix → samples; "at_ns" counts from the run's start.
    """

    seed: int
    start_id: int
    started_at: str
    metrics: Mapping[str, float | None]
    apart: Mapping[str, float | None] = field(default_factory=dict)
    counters: Mapping[str, float | None] = field(default_factory=dict)
    requests: Path | None = None
    telemetry: Mapping[str, Mapping[str, list[float | None]]] = field(default_factory=dict)

    def value_with_failures(self, name: str) -> float | None:
        """A metric in its unit with each failed request as an infinite latency (`metrics.failed_as_infinite`).

        None where the run does not have the metric.
        """
        if name not in self.apart:
            return self.metrics.get(name)
        value = self.apart[name]
        return inf if value is None else value

    def records(self) -> Requests:
        """What its requests did; none where that was not kept.

        Raises:
            BaselineError: the file cannot be read or believed.
        """
        return decode(self.requests) if self.requests is not None else Requests()


@dataclass(frozen=True, slots=True)
class StoredRunMeasurement:
    """One measurement: as `results.measurement.Measurement`, less what only judging needs."""

    engine: str
    workload: str
    conditions: Mapping[str, str]
    runs: tuple[StoredRun, ...]
    complete: bool = True
    baseline: str | None = None
    primaries: tuple[str, ...] = ()
    side: str = ""
    margins: Mapping[str, Margins] = field(default_factory=dict)

    @property
    def searched(self) -> bool:
        """Whether each run was a search for the highest rate within an SLO, which sends nothing itself."""
        return "search" in self.conditions

    @property
    def tried(self) -> bool:
        """Whether it is one rate of such a search; how many there are depends on what is found."""
        return "tried_rate" in self.conditions

    def value_with_failures(self, name: str) -> float | None:
        """Mean of a metric over the runs, as it is judged, in its unit; None where one does not have it."""
        run_values = [run.value_with_failures(name) for run in self.runs]
        values = [value for value in run_values if value is not None]
        return fmean(values) if values and len(values) == len(run_values) else None


@dataclass(frozen=True)
class StoredRunTest:
    """One test.

    Args:
        test: its id.
        complete: whether it reached its end.
        error: what ended it before, with the evidence.
        folder: the run folder; None where it was read from JUnit.
        worker: of xdist, that ran it; "" where there was none.
    """

    test: str
    complete: bool
    error: str | None
    measurements: tuple[StoredRunMeasurement, ...]
    checks: tuple[CheckResult, ...]
    folder: Path | None = None
    worker: str = ""

    @cached_property
    def verdict(self) -> Verdict:
        """The worst of its checks; ERROR for a test that did not reach its end."""
        if self.error or not self.complete:
            return Verdict.ERROR
        return verdict_of_test(self.checks)

    @property
    def reason(self) -> str:
        """One line that says why; "" for a plain PASS."""
        if self.error:
            return self.error.partition("\n")[0]
        if not self.complete:
            return "It did not reach its end: it was interrupted, or failed outside its checks."
        deciding = next((check for check in self.checks if check.verdict is self.verdict and check.cause), None)
        if deciding is None:
            return ""
        reason = reason_text(deciding)
        names_metric = not deciding.metric or reason.startswith(deciding.metric)
        return reason if names_metric else f"{deciding.metric}: {reason}"


def read_run(folder: Path) -> tuple[StoredRunTest, ...]:
    """Every test of a run folder, by id.

    Raises:
        UsageError: there is no such folder, or it is none of a run.
        BaselineError: one of its files cannot be read or believed.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such run folder. Run folders lie in .llmperf/runs/.")
    files = sorted((folder / "tests").glob("*.json"))
    if not files:
        raise UsageError(f"{folder}: this is no run folder: it has no tests/*.json. Run folders lie in .llmperf/runs/.")
    return tuple(sorted((_read(path, folder) for path in files), key=lambda test: test.test))


def choose(tests: Sequence[StoredRunTest], part: str, folder: Path) -> tuple[StoredRunTest, ...]:
    """The tests whose id has this part.

    Raises:
        UsageError: none has; the message names those that there are.
    """
    matches = tuple(test for test in tests if part in test.test)
    if not matches:
        there = ", ".join(test.test for test in tests)
        raise UsageError(f"{folder}: no test's id has {part!r} in it. There are: {there}.")
    return matches


def read_session(folder: Path) -> Mapping[str, object]:
    """What `session.json` says of the session; empty where there is none."""
    try:
        content = json.loads((folder / SESSION_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def names(measurements: Sequence[StoredRunMeasurement]) -> list[str]:
    """Of each measurement of a test: a claim's side, its number where there is none, both where a side stands twice."""
    sides = [measurement.side for measurement in measurements]
    numbered = enumerate(sides, start=1)
    return [side if side and sides.count(side) == 1 else f"{side}{number}" for number, side in numbered]


def as_measurement(stored: StoredRunMeasurement) -> Measurement:
    """The measurement as it was, made from its requests.

    Raises:
        UsageError: a run has no requests, or not all of them with their arrivals.
        BaselineError: its requests cannot be read.
    """
    from pytest_llmperf.metrics import measure
    from pytest_llmperf.model.record import RunRecords
    from pytest_llmperf.results.measurement import Measurement, Run

    runs = []
    for run in stored.runs:
        requests = run.records()
        if not requests.kept or requests.left_out:
            how = "only in part" if requests.kept else "not"
            raise UsageError(f"{stored.engine}, seed {run.seed}: what each request did was {how} kept; show, diff and "
                             "the report still work.")
        runs.append(Run(run.seed, run.start_id, RunRecords(requests.kept), run.counters, started_at=run.started_at))
    metrics = tuple(measure(run.records, run.counters) for run in runs)
    return Measurement(stored.engine, stored.workload, stored.conditions, tuple(runs), metrics, side=stored.side)


def _read(path: Path, folder: Path) -> StoredRunTest:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: the run file cannot be read: {error}.") from error
    top = parse(content, str(path), REPAIR)
    node = top.table()
    if "schema" not in node or node["schema"].value != SCHEMA:
        schema = node["schema"].value if "schema" in node else None
        top.refuse(f"its schema is {schema!r}, and this version reads {SCHEMA}")
    fields = top.fields(("test", "complete", "error", "measurements", "checks"), optional=node)
    return StoredRunTest(
        test=fields["test"].text(),
        complete=fields["complete"].flag(),
        error=fields["error"].text_or_none(),
        measurements=tuple(_measurement(one, folder) for one in fields["measurements"].items()),
        checks=tuple(check_from(one) for one in fields["checks"].items()),
        folder=folder,
        worker=_worker(fields["worker"]) if "worker" in fields else "",
    )


def _worker(node: Node) -> str:
    """It names a folder below `servers/`."""
    name = node.text()
    if name != Path(name).name or name == "..":
        node.refuse(f"{name!r} is no name of a worker")
    return name


def _measurement(node: Node, folder: Path) -> StoredRunMeasurement:
    fields = node.fields(("engine", "workload", "conditions", "runs", "complete"), optional=node.table())
    return StoredRunMeasurement(
        engine=fields["engine"].text(),
        workload=fields["workload"].text(),
        conditions=fields["conditions"].texts(),
        runs=tuple(_run(one, folder) for one in fields["runs"].items()),
        complete=fields["complete"].flag(),
        baseline=fields["baseline"].text_or_none() if "baseline" in fields else None,
        primaries=tuple(one.text() for one in fields["primaries"].items()) if "primaries" in fields else (),
        side=fields["side"].text() if "side" in fields else "",
        margins=dict(_margins(fields)),
    )


def _margins(fields: Mapping[str, Node]) -> Iterator[tuple[str, Margins]]:
    negligible, tolerated = shares(fields, "negligible"), shares(fields, "margins")
    for metric in negligible.keys() & tolerated.keys():
        yield metric, margins_from(fields["margins"], negligible[metric], tolerated[metric])


def margins_from(node: Node, negligible: float, tolerated: float) -> Margins:
    """A test's own margins of one metric, as the file has them.

    Raises:
        BaselineError: they cannot be margins.
    """
    try:
        return Margins(negligible, tolerated)
    except ValueError as error:
        node.refuse(str(error))


def _run(node: Node, folder: Path) -> StoredRun:
    fields = node.fields(("seed", "start_id", "metrics"), optional=node.table())
    requests = _inside(folder, fields["requests"]) if "requests" in fields else None
    return StoredRun(
        seed=fields["seed"].integer(),
        start_id=fields["start_id"].integer(),
        started_at=fields["started_at"].text() if "started_at" in fields else "",
        metrics=numbers(fields, "metrics"),
        apart=numbers(fields, "judged"),
        counters=numbers(fields, "counters"),
        requests=requests if requests is not None and requests.is_file() else None,
        telemetry={source: dict(_columns(fields[source])) for source in TELEMETRY if _optional_values(fields, source)},
    )


def _inside(folder: Path, node: Node) -> Path:
    """The file in the run folder that a run file names."""
    path = folder / node.text()
    if not path.resolve().is_relative_to(folder.resolve()):
        node.refuse(f"{node.value!r} leads out of the run folder, and nothing is read there")
    return path


def _optional_values(fields: Mapping[str, Node], name: str) -> bool:
    return name in fields and fields[name].value is not None


def _columns(node: Node) -> Iterator[tuple[str, list[float | None]]]:
    """What is a list of numbers; anything else says how it was sampled."""
    for name, column in node.table().items():
        if isinstance(column.value, list) and not any(isinstance(value, list | dict | str) for value in column.value):
            yield name, [value.number_or_none() for value in column.items()]
