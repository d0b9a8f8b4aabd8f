"""Going on in the run folder of an earlier session: on the same commit and hardware kind, perhaps on another host."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pytest_llmperf.errors import UsageError
from pytest_llmperf.results.conditions import DECLARED
from pytest_llmperf.results.measurement import Measurement, TestResult
from pytest_llmperf.results.reader import find_run, read_run, read_session
from pytest_llmperf.results.writer import file_name
from pytest_llmperf.session.conditions import BESIDE
from pytest_llmperf.session.provenance import HOSTS, provenance
from pytest_llmperf.telemetry.hardware import Hardware

Stored = TypeVar("Stored")
#: Conditions of a rate that a search tried. A search mixes no rates of several hosts, so the host is one of them.
RATE, SEARCH, RATE_HOST = "tried_rate", "search", "rate_host"
#: The answer of the search: proven or not, and on which side of the SLOs the rate lies ("within" or "over").
RATE_VERDICT, RATE_SIDE = "rate_verdict", "rate_side"
#: Number of runs that the search found to be valid, before the verdict of the rate.
VALID_RUNS = "rate_valid_runs"
OF_SEARCH = (RATE_VERDICT, RATE_SIDE, VALID_RUNS)


def folder_to_resume(named: str, runs_dir: Path, directory: Path) -> Path:
    """The run folder that `--resume` names.

    Args:
        named: a path, relative to `directory`, an id, a part of an id, or "newest".
        runs_dir: where this session writes.

    Raises:
        UsageError: there is no such run, or the folder lies elsewhere.
    """
    try:
        folder = find_run(named, runs_dir, directory).resolve()
        if folder.parent != runs_dir.resolve():
            read_run(folder)  # any path is found: beside a folder without results no run is written
    except UsageError as error:
        raise UsageError(f"--resume {error} Drop --resume.") from error
    if folder.parent != runs_dir.resolve():
        raise UsageError(f"--resume {named}: the run folder must lie in {runs_dir}, where this session writes. "
                         f"Write --llmperf-runs={folder.parent}, or move the folder.")
    return folder


def resumed_tests(
    folder: Path, root: Path, ignored: list[str], hardware: Hardware, host: str
) -> tuple[TestResult, ...]:
    """The tests of a run folder.

    Args:
        folder: the run folder.
        root: root of the project.
        ignored: paths whose changes do not make the project dirty.
        hardware: of this session.
        host: digest of this host.

    Raises:
        UsageError: the run is of another commit or hardware kind.
        LlmperfError: the folder is no run folder.
    """
    tests, commit = read_run(folder), read_session(folder).get("commit")
    now = provenance(root, folder.name, datetime.now(UTC), ignored, host)
    kinds = {measurement.conditions.get("hardware", "") for test in tests for measurement in test.measurements
             if DECLARED not in measurement.conditions}
    kind = hardware.labelled(hardware.kind)
    differing = [("commit", commit, now.commit)] if commit != now.commit else []
    if kinds and kinds.isdisjoint({kind, "cpu"} if not hardware.emulated else {kind}):
        differing.append(("hardware", ", ".join(sorted(kinds)), kind))
    if differing:
        texts = "; ".join(f"its {name} is {was}, and this is {is_}" for name, was, is_ in differing)
        raise UsageError(f"--resume {folder.name}: {texts}. Results of another {differing[0][0]} do not belong to this "
                         "session. Drop --resume.")
    return tests


def stored_rates(stored: TestResult | None, host: str) -> list[Measurement]:
    """The rates, and the sides of interrupted claims, that resumed searches of this test can take over.

    A look at a claim judges the pairs of searches that it has judged before, in their order and on their server starts.
    So a resumed look is the same look. The start of a search tells its host, which the rates of this start have stored.

    A judged rate has its verdict. Of a rate without a verdict the first runs are taken over that are valid and whose
    requests are stored: the search measures the missing runs and judges. These runs must be of the same host, because a
    verdict mixes no hosts.

    Args:
        stored: the test in the resumed run folder; None for a new test.
        host: digest of this host.
    """
    measurements, rates = () if stored is None else stored.measurements, list[Measurement]()
    hosts = {run.start_id: each.conditions[RATE_HOST] for each in measurements if RATE in each.conditions
             for run in each.runs}
    for measurement in measurements:
        if RATE_VERDICT in measurement.conditions:
            rates.append(measurement)
        elif measurement.side and SEARCH in measurement.conditions and measurement.runs:
            of_host = {RATE_HOST: hosts.get(measurement.runs[0].start_id, "")}
            rates.append(replace(measurement, conditions={**measurement.conditions, **of_host}))
        elif VALID_RUNS in measurement.conditions and measurement.conditions.get(RATE_HOST) == host:
            valid = measurement.runs[: int(measurement.conditions[VALID_RUNS])]
            if valid and all(run.requests is not None and run.requests.is_file() for run in valid):
                rates.append(measurement.with_runs(valid))
    return rates


def finished_sides(stored: TestResult | None, host: str) -> list[Measurement]:
    """The sides of claims of an interrupted test with all their runs, if no other server ran beside the side.

    A claim compares two sides of one host, so the run folder must be of this host alone.

    Args:
        stored: the test in the resumed run folder; None for a new test.
        host: digest of this host.
    """
    if stored is None or stored.folder is None or stored.complete or stored.earlier_ends:
        return []
    session = read_session(stored.folder)
    if session.get(HOSTS, [session.get("host")]) != [host]:
        return []
    return [each for each in stored.measurements if each.side and each.complete and SEARCH not in each.conditions
            and BESIDE not in each.conditions.get("treatment", "")
            and all(run.requests is not None and run.requests.is_file() for run in each.runs)]


def take_side(sides: list[Measurement], side: str, engine: str, workload: str) -> Measurement | None:
    """Remove and return the finished side of a claim; None: not stored."""
    return take_first(sides, lambda stored: (stored.side, stored.engine, stored.workload) == (side, engine, workload))


def take_first(stored: list[Stored], fits: Callable[[Stored], bool]) -> Stored | None:
    """Remove and return the first stored value that fits; None: there is none."""
    position = next((position for position, each in enumerate(stored) if fits(each)), None)
    return None if position is None else stored.pop(position)


@dataclass(frozen=True, slots=True)
class StoredExecutions:
    """Executions of a test in earlier commands of a resumed session.

    Each spent a part of the error, and no check uses the runs.

    Args:
        ends: how each ended.
        documents: as the run file has them.
        first_seed: first seed of further runs; 0 if the test is compared with a baseline, which is paired by seed.
    """

    ends: tuple[str | None, ...] = ()
    documents: tuple[object, ...] = ()
    first_seed: int = 0


def stored_executions(stored: TestResult | None) -> StoredExecutions:
    """The executions of a test that ended, in the resumed run folder. Only run files with inputs count."""
    if stored is None or stored.folder is None or not (stored.inputs and stored.complete) or stored.error:
        return StoredExecutions()
    content = json.loads((stored.folder / "tests" / file_name(stored.test, stored.worker)).read_bytes())
    ends = (*stored.earlier_ends, stored.verdict.value)
    own = {"execution": len(ends), "ended": ends[-1], "error": None, "checks": content["checks"],
           "measurements": content["measurements"]}
    seeds = [run.seed for measurement in stored.measurements for run in measurement.runs]
    first_seed = 0 if stored.compared else max(seeds, default=-1) + 1
    return StoredExecutions(ends, (*content.get("earlier", ()), own), first_seed)


def finished_measurements(stored: TestResult | None) -> list[Measurement]:
    """The finished measurements of this test without the rates of searches and without the sides of claims."""
    measurements = () if stored is None else stored.measurements
    return [each for each in measurements if each.complete and not each.side and RATE not in each.conditions]


def looks_elsewhere(rates: Sequence[Measurement], host: str) -> int:
    """Number of other hosts that searched for a claim. Their pairs do not count, and each was a look at the claim."""
    return len({rate.conditions[RATE_HOST] for rate in rates if rate.side} - {host})


def take_rate(rates: list[Measurement], begun: Measurement) -> Measurement | None:
    """Remove and return the stored rate or side with the engine, workload and conditions of `begun`; None: not stored.
    """
    def fits(rate: Measurement) -> bool:
        conditions = {name: value for name, value in rate.conditions.items() if name not in OF_SEARCH}
        return (rate.side, rate.engine, rate.workload, conditions) == (
            begun.side, begun.engine, begun.workload, dict(begun.conditions))

    return take_first(rates, fits)


def check_search(rates: list[Measurement], search: str, engine: str) -> None:
    """Raise UsageError if the stored rates are of another engine or another search."""
    for rate in rates:
        if (rate.engine, rate.conditions.get(SEARCH)) != (engine, search):
            raise UsageError(
                f"--resume: the stored rates are of {rate.engine} and {rate.conditions.get(SEARCH)}, and this search "
                f"is of {engine} and {search}. Give the options of the first command, or drop --resume."
            )
