"""A run folder, read back: the one reader of run files (`results.writer` has their schema)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_llmperf.bounded_file import check_inside
from pytest_llmperf.errors import BaselineError, UsageError, echo
from pytest_llmperf.results.check_json import check_from
from pytest_llmperf.results.measurement import Measurement, Run, StoredTelemetry, TestResult
from pytest_llmperf.results.profile import profile_from
from pytest_llmperf.results.session_outcomes import FILE as OUTCOMES_FILE
from pytest_llmperf.results.session_outcomes import RecordedOutcome, read_outcomes
from pytest_llmperf.results.strict_json import Node, read_json
from pytest_llmperf.results.writer import SCHEMA
from pytest_llmperf.stats.priors import NEGLIGIBLE_PART, Margins

REPAIR = "It is no run file of this version; run the test again."
SESSION_FILE = "session.json"
NEWEST = "newest"
MOST_RUNS_NAMED = 5
MOST_NAMED = 20  # tests in a message
TELEMETRY = ("server", "gpu")  # keys of a run's sampled tables


def read_run(folder: Path) -> tuple[TestResult, ...]:
    """Every test of a run folder, by id.

    Raises:
        UsageError: the folder does not exist or is not a run folder.
        BaselineError: a file is unreadable or invalid.
    """
    if folder.is_file():
        raise UsageError(f"{folder}: this is a file and no run folder. Run folders lie in .llmperf/runs/. Result files "
                         "of other load generators are compared by llmperf diff OLD.json NEW.json.")
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such run folder. Run folders lie in .llmperf/runs/.")
    files = sorted((folder / "tests").glob("*.json"))
    outcomes = {(outcome.test, outcome.file): outcome for outcome in read_outcomes(folder)}
    if not files and not outcomes:
        raise UsageError(f"{folder}: this is no run folder: it has no tests/*.json. Run folders lie in .llmperf/runs/.")
    tests = []
    for path in files:
        test = read_test(path)
        # The file of a test that an exception ended may be unknown to the session.
        unknown = None if test.complete else outcomes.pop((test.test, ""), None)
        tests.append(_recorded(test, outcomes.get((test.test, path.name)) or unknown))
    tests += [_recorded(TestResult(outcome.test, False, None, (), (), folder), outcome)
              for outcome in outcomes.values() if not outcome.file]
    return tuple(sorted(tests, key=lambda test: test.test))


def _recorded(test: TestResult, outcome: RecordedOutcome | None) -> TestResult:
    """A test with the outcome that its session recorded, if the session has come to its end."""
    return test if outcome is None else replace(
        test, ended=outcome.outcome, error=outcome.error or None, owner=outcome.owner, excuse=outcome.excuse)


def choose(tests: Sequence[TestResult], part: str, folder: Path) -> tuple[TestResult, ...]:
    """The test with this id or name, else the tests whose id has this part.

    Raises:
        UsageError: no test has it. The message lists the tests.
    """
    named = tuple(test for test in tests if f"::{test.test}".endswith(f"::{part}"))
    matches = named or tuple(test for test in tests if part in test.test)
    if not matches:
        there = "none" if not tests else ", ".join(echo(test.test).strip("'") for test in tests[:MOST_NAMED])
        more = f" and {len(tests) - MOST_NAMED} more" if len(tests) > MOST_NAMED else ""
        raise UsageError(f"{folder}: no test's id has {echo(part)} in it. There are: {there}{more}. Write a part "
                         "of one of these ids.")
    return matches


def stored_runs(runs_dir: Path) -> list[Path]:
    """The run folders that hold a test, oldest first: their names begin with the time."""
    return sorted({path.parents[1] for path in runs_dir.glob("*/tests/*.json")}
                  | {path.parent for path in runs_dir.glob(f"*/{OUTCOMES_FILE}")})


def find_run(named: str, runs_dir: Path, directory: Path) -> Path:
    """The run that a user names: a path, the id of a run, a part of the id, or "newest".

    Args:
        named: as the user wrote it.
        runs_dir: the project's folder of run folders.
        directory: to which a path is relative.

    Raises:
        UsageError: there is no such run, or several.
    """
    path = directory / named
    if path.exists():
        return path
    return runs_dir / chosen_run(named, [run.name for run in stored_runs(runs_dir)], str(runs_dir))


def chosen_run(named: str, runs: Sequence[str], place: str) -> str:
    """The one of these ids that a user names by a part of the id, or as "newest".

    Args:
        named: as the user wrote it.
        runs: ids, oldest first.
        place: that has these runs, for messages.

    Raises:
        UsageError: there is no such run, or several.
    """
    matches = runs[-1:] if named == NEWEST else [run for run in runs if named and named in run]
    if len(matches) == 1:
        return matches[0]
    if len(matches) > 1:
        raise UsageError(f"{named}: {len(matches)} runs have this in their id: {_names(matches)}. Write more of it.")
    if not runs:
        raise UsageError(f"{named}: no run is stored in {place}. Run pytest first.")
    raise UsageError(f"{named}: there is no such path, and no run in {place} has this in its id. Stored are "
                     f"{_names(runs)}.")


def _names(runs: Sequence[str]) -> str:
    """The newest of these, newest first."""
    shown = ", ".join(reversed(runs[-MOST_RUNS_NAMED:]))
    return shown if len(runs) <= MOST_RUNS_NAMED else f"{shown} and {len(runs) - MOST_RUNS_NAMED} older ones"


def read_session(folder: Path) -> Mapping[str, object]:
    """What `session.json` says of the session; empty if there is none."""
    try:
        content = read_json(folder / SESSION_FILE, folder).value
    except (OSError, BaselineError):
        return {}
    return content if isinstance(content, dict) else {}


def canary_entries(session: Mapping[str, object]) -> list[dict[str, object]]:
    """The values of each host's canary in `session.json`; a file from elsewhere may have anything in their place."""
    entries = session.get("canary")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def names(measurements: Sequence[Measurement]) -> list[str]:
    """Name of each measurement of a test: the side of a claim, else a number; a repeated side also gets its number."""
    sides = [measurement.side for measurement in measurements]
    numbered = enumerate(sides, start=1)
    return [side if side and sides.count(side) == 1 else f"{side}{number}" for number, side in numbered]


def read_test(path: Path) -> TestResult:
    """The result of one test.

    Args:
        path: `FOLDER/tests/NAME.json`.

    Raises:
        UsageError: the file cannot be read.
        BaselineError: its content cannot be believed.
    """
    folder = path.parent.parent
    try:
        top = read_json(path, folder, REPAIR)
    except OSError as error:
        raise UsageError(f"{path}: the run file cannot be read: {error.strerror}. Name another run folder.") from error
    _require_schema(top)
    fields = top.fields(("test", "complete", "error", "measurements", "checks"), optional=top.table())
    return TestResult(
        test=fields["test"].text(),
        complete=fields["complete"].flag(),
        error=fields["error"].text_or_none(),
        measurements=tuple(_measurement(node, folder) for node in fields["measurements"].items()),
        checks=tuple(check_from(node) for node in fields["checks"].items()),
        folder=folder,
        worker=_worker(fields["worker"]) if "worker" in fields else "",
        profiles=tuple(profile_from(node) for node in fields["profiles"].items()) if "profiles" in fields else (),
        earlier_ends=tuple(
            execution.fields(("ended",), optional=execution.table())["ended"].text_or_none()
            for execution in (fields["earlier"].items() if "earlier" in fields else ())
        ),
        inputs=fields["inputs"].texts() if "inputs" in fields else {},
    )


def _require_schema(top: Node) -> None:
    node = top.table().get("schema")
    schema = None if node is None else node.value
    if isinstance(schema, int) and schema > SCHEMA:
        top = replace(top, repair="Install a newer pytest-llmperf.")
    if schema != SCHEMA:
        top.refuse(f"its schema is {echo(schema)}, and this version reads {SCHEMA}")


def _worker(node: Node) -> str:
    """The name of a worker, which is also the name of a folder below `servers/`."""
    name = node.text()
    if name != Path(name).name or name == ".." or "\0" in name:
        node.refuse(f"{echo(name)} is no name of a worker")
    return name


def _measurement(node: Node, folder: Path) -> Measurement:
    fields = node.fields(("engine", "workload", "conditions", "runs", "complete"), optional=node.table())
    engine = fields["engine"].text()
    return Measurement(
        engine=engine,
        workload=fields["workload"].text(),
        conditions=fields["conditions"].texts(),
        runs=tuple(_run(run, folder, engine) for run in fields["runs"].items()),
        complete=fields["complete"].flag(),
        baseline=fields["baseline"].text_or_none() if "baseline" in fields else None,
        primaries=tuple(name.text() for name in fields["primaries"].items()) if "primaries" in fields else (),
        margins=dict(_margins(fields)),
        side=fields["side"].text() if "side" in fields else "",
        looks=_looks(fields["looks"]) if "looks" in fields else 1,
        alone=fields["alone"].text() if "alone" in fields else "",
    )


def _looks(node: Node) -> int:
    looks = node.integer()
    if looks < 1:
        node.refuse(f"{looks} is no number of looks; a measurement has at least 1")
    return looks


def _margins(fields: Mapping[str, Node]) -> Iterator[tuple[str, Margins]]:
    """Older files hold the tolerated change alone."""
    negligible = numbers(fields, "negligible")
    for metric, tolerated in numbers(fields, "margins").items():
        if tolerated is not None:
            smaller = negligible.get(metric)
            yield metric, margins_from(
                fields["margins"], NEGLIGIBLE_PART * tolerated if smaller is None else smaller, tolerated
            )


def margins_from(node: Node, negligible: float, tolerated: float) -> Margins:
    """A test's own margins of one metric, as the file has them.

    Raises:
        BaselineError: the values cannot be margins.
    """
    try:
        return Margins(negligible, tolerated)
    except ValueError as error:
        node.refuse(str(error))


def numbers(fields: Mapping[str, Node], name: str) -> dict[str, float | None]:
    """A table of numbers; empty if there is none."""
    table = fields[name].table() if name in fields else {}
    return {key: value.number_or_none() for key, value in table.items()}


def _tables(fields: Mapping[str, Node], name: str) -> dict[str, dict[str, float | None]]:
    """Tables of numbers by name; empty if there are none."""
    tables = fields[name].table() if name in fields else {}
    return {key: numbers(tables, key) for key in tables}


def _run(node: Node, folder: Path, engine: str) -> Run:
    fields = node.fields(("seed", "start_id", "metrics"), optional=node.table())
    values, judged = numbers(fields, "metrics"), numbers(fields, "judged")
    seed, start_id = fields["seed"].integer(), fields["start_id"].integer()
    return replace(
        Run.of_values(seed, start_id, values, judged, requests=_requests(fields, folder), engine=engine),
        counters=numbers(fields, "counters"),
        replicas=_tables(fields, "replicas"),
        stored_failures={name: node.integer() for name, node in fields["failures"].table().items()}
        if "failures" in fields else {},
        started_at=fields["started_at"].text() if "started_at" in fields else "",
        execution=fields["execution"].integer() if "execution" in fields else 1,
        block=fields["block"].integer() if _has_value(fields, "block") else None,
        stored_telemetry=StoredTelemetry(
            {source: dict(_columns(fields[source])) for source in TELEMETRY if _has_value(fields, source)},
            fields["contended"].text_or_none() if "contended" in fields else None,
        ),
    )


def _requests(fields: Mapping[str, Node], folder: Path) -> Path | None:
    """The file of a run's requests; None if the file was not kept."""
    if "requests" not in fields:
        return None
    path = _inside(folder, fields["requests"])
    return path if path.is_file() else None


def _inside(folder: Path, node: Node) -> Path:
    """The file in the run folder that a run file names."""
    path = folder / node.text()
    try:
        check_inside(path, folder)
    except OSError as error:
        node.refuse(f"{echo(node.value)} is no path in the run folder: {error.strerror}")
    return path


def _has_value(fields: Mapping[str, Node], name: str) -> bool:
    return name in fields and fields[name].value is not None


def _columns(node: Node) -> Iterator[tuple[str, list[float | None]]]:
    """What is a list of numbers; anything else says how it was sampled."""
    for name, column in node.table().items():
        if isinstance(column.value, list) and not any(isinstance(value, list | dict | str) for value in column.value):
            yield name, column.numbers()
