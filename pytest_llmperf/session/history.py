"""Reads the history of metrics: run folders, baselines with their versions in git, and JUnit files of releases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_llmperf.baseline.catalog import catalog
from pytest_llmperf.baseline.paths import bare_test
from pytest_llmperf.baseline.text import decode
from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.metrics.registry import is_metric
from pytest_llmperf.process.git import git
from pytest_llmperf.process.places import scratch_folder
from pytest_llmperf.report.junit import read_release
from pytest_llmperf.report.release import primaries_of
from pytest_llmperf.results.baseline import Entry
from pytest_llmperf.results.conditions import (
    PLANTED,
    digest,
    fingerprint_of,
    is_of_build,
    kind_of,
    requested_flags,
    session_conditions,
)
from pytest_llmperf.results.history import SeriesName, Session
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.results.reader import canary_entries, names, read_run, read_session, stored_runs

#: Conditions that all sessions of a series share. Other conditions may differ: a newer version may record more of them.
COMMON = ("model", "weights", "workload", "warm_up", "treatment", "search", "flags", "env", "lmcache", "gpu_count",
          "url", PLANTED)


@dataclass(slots=True)
class History:
    """What was read.

    Args:
        sessions: series → its sessions.
        notes: what the history lacks, as sentences.
        metrics: names of the metrics; empty for the primary metrics of each test.
        errors: tests of sessions that ended in ERROR and are left out.
    """

    sessions: dict[SeriesName, list[Session]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    metrics: Sequence[str] = ()
    errors: int = 0
    _known: set[tuple[str, ...]] = field(default_factory=set)

    def add(self, name: SeriesName, session: Session) -> None:
        """Add a session that no earlier source has. Its host does not matter: older baselines may name it otherwise."""
        known = (name.test, name.measurement, name.metric, name.kind, session.id)
        if known not in self._known:
            self._known.add(known)
            self.sessions.setdefault(name, []).append(session)


def read_history(
    root: Path, baselines: str, runs: str, sources: Sequence[Path], metrics: Sequence[str] = ()
) -> History:
    """The sessions of all sources.

    Args:
        root: of the project.
        baselines, runs: its folders of baselines and of run folders, relative to `root`.
        sources: run folders, folders of run folders, folders of baselines, JUnit files; if empty, the run folders and
            the baselines of the project.
        metrics: as in `History`.

    Raises:
        UsageError: a source is none of these, or git refuses.
        BaselineError: a file is invalid.
    """
    history = History(metrics=metrics)
    chosen = sources or [path for path in (root / runs, root / baselines) if stored_runs(path) or _baselines_in(path)]
    for source in chosen:
        if source.is_file():
            _add_release(history, source)
        elif (source / "tests").is_dir():
            _add_run(history, source)
        elif folders := stored_runs(source):
            for folder in folders:
                _add_run(history, folder)
        elif _baselines_in(source):
            _add_baselines(history, source)
        elif not source.exists():
            raise UsageError(f"{source}: there is no such file or folder.")
        else:
            raise UsageError(f"{source}: this is no run folder, no folder of run folders or baselines, and no JUnit "
                             "file. Name one: llmperf history .llmperf/runs baselines release.xml")
    return history


def _baselines_in(folder: Path) -> list[Path]:
    return list(folder.glob("*/*/*.json"))


def _add_run(history: History, folder: Path) -> None:
    session = read_session(folder)
    canary = {name: float(value) for entry in canary_entries(session) for name, value in entry.items()
              if isinstance(value, int | float)}
    date, commit, host = (str(session.get(name) or "") for name in ("date", "commit", "host"))
    page = folder / "report.html"
    is_copy = folder.is_relative_to(scratch_folder())  # of a run in a store, which ends with this command
    link = "" if is_copy else str((page if page.is_file() else folder).absolute())
    origin = Session(folder.name, date, commit, (), (), canary=canary, link=link)
    for test in read_run(folder):
        _add_test(history, test, origin, host or "unknown")


def _add_release(history: History, path: Path) -> None:
    """Add the tests of a JUnit file that has run folders. A file without them has verdicts alone and is refused."""
    tests = read_release(path)
    folders = {test.folder for test in tests if test.folder is not None}
    if not folders:
        raise UsageError(f"{path}: the run folder that this JUnit file names is not beside it, so its metrics are "
                         "unknown. Copy .llmperf/runs beside the file.")
    for folder in sorted(folders):
        _add_run(history, folder)


def _add_test(history: History, test: TestResult, origin: Session, host: str) -> None:
    if test.ending.verdict == "ERROR":  # its runs are invalid
        history.errors += 1
        return
    labels = names(test.measurements) if len(test.measurements) > 1 else [""]
    for label, measurement in zip(labels, test.measurements, strict=True):
        if measurement.side == "b" or measurement.tried or not measurement.complete or not measurement.runs:
            continue
        kind, build = kind_of(measurement.conditions), _build(measurement.conditions)
        stored_label = label if measurement.baseline is None else measurement.baseline
        seeds = tuple(run.seed for run in measurement.runs)
        for metric in filter(is_metric, history.metrics or primaries_of(measurement)):
            name = SeriesName(bare_test(test.test, kind), stored_label, metric, kind, host,
                              _common(measurement.conditions))
            history.add(name, replace(origin, runs=measurement.values_with_failures(metric), seeds=seeds, build=build))


def _common(conditions: Mapping[str, str]) -> str:
    return digest({name: conditions[name] for name in COMMON if name in conditions})


def _build(conditions: Mapping[str, str]) -> dict[str, str]:
    flags = requested_flags(conditions)
    return {name: value for name, value in fingerprint_of(conditions).items() if is_of_build(name, flags)}


def _add_baselines(history: History, folder: Path) -> None:
    for entry in catalog(folder):
        _add_baseline(history, entry)
    shallow = git(folder, "rev-parse", "--is-shallow-repository")
    if shallow is None:
        history.notes.append(f"{folder} lies in no git repository, so older sessions that left the baselines are "
                             "missing.")
        return
    if shallow.strip() == b"true":
        history.notes.append(f"The git repository of {folder} is shallow, so older sessions may be missing. Get them: "
                             "git fetch --unshallow")
    unread = 0
    for kind, blob in _blobs(folder):
        try:
            _add_baseline(history, Entry(kind, blob, decode(git(folder, "cat-file", "blob", blob) or b"", blob)))
        except BaselineError:  # of another version
            unread += 1
    if unread:
        history.notes.append(f"{unread} versions of baselines in git cannot be read by this version.")


def _blobs(folder: Path) -> Iterator[tuple[str, str]]:
    """Kind and object of each version of each baseline in git, the newest first."""
    listed = git(folder, "log", "--raw", "--no-abbrev", "--no-renames", "--format=", "--relative", "--", ".") or b""
    lines = (line.partition("\t") for line in listed.decode("utf-8", "replace").splitlines())
    seen = dict.fromkeys((path.partition("/")[0], fields.split()[3]) for fields, _, path in lines
                         if path.count("/") == 2 and path.endswith(".json"))
    yield from ((kind, blob) for kind, blob in seen if blob.strip("0"))


def _add_baseline(history: History, entry: Entry) -> None:
    for label, stored in entry.baseline.measurements.items():
        for metric in filter(is_metric, history.metrics or stored.primaries):
            for each in stored.sessions:
                accepted = f"accepted: {each.accepted}" if each.accepted else ""
                conditions = session_conditions(stored, each)
                history.add(
                    SeriesName(entry.baseline.test, label, metric, entry.kind, each.host, _common(conditions)),
                    Session(each.id, each.date, each.commit or "", each.values(metric),
                            tuple(seed for seed, _ in each.runs), _build(conditions),
                            note=", ".join(filter(None, ("anchor" if each.anchor else "", accepted)))),
                )
