"""What the template is filled with: words, tables, charts and server logs of each test."""

from __future__ import annotations

import base64
import gzip
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pytest_llmperf.bounded_file import check_inside, read_text
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.process.launch import COMMAND_FILE
from pytest_llmperf.process.serverlog import tail_lines
from pytest_llmperf.report.html.figures import figures
from pytest_llmperf.report.html.history import History, history
from pytest_llmperf.report.html.metric_table import ComparedSide, MetricTable, metric_table
from pytest_llmperf.report.html.search import SearchTable, searches
from pytest_llmperf.report.html.words import in_words, labels, title
from pytest_llmperf.report.metric_rows import comparisons_of, replica_rows
from pytest_llmperf.results.baseline import ReadBaseline
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import unseen_gpu
from pytest_llmperf.results.emulated_ground import distance
from pytest_llmperf.results.ended_test import severity
from pytest_llmperf.results.measurement import Measurement, TestResult
from pytest_llmperf.results.profile import Profile, shares_by_heading

_DIGEST = re.compile(r"[0-9a-f]{40,}")


@dataclass(frozen=True, slots=True)
class Side:
    """One measurement in words."""

    label: str
    measurement: Measurement
    history: History | None

    @property
    def hardware(self) -> str:
        declared = unseen_gpu(self.measurement.conditions)
        hardware = self.measurement.conditions.get("hardware", "unknown")
        if declared is None:
            return f"{hardware} ({ground})" if (ground := distance(self.measurement.conditions)) else hardware
        return f"{hardware} (declared; its telemetry is not seen)"


@dataclass(frozen=True, slots=True)
class ProfileTable:
    """The trace of one measurement: a row of shares for each rank, with a link to its file."""

    label: str
    problem: str
    device: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    nsys: str = ""


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
    metrics: MetricTable
    servers: tuple[ServerLog, ...]
    searches: tuple[SearchTable, ...]
    figures: str
    problem: str
    profiles: tuple[ProfileTable, ...] = ()

    @property
    def replicas(self) -> list[tuple[str, list[tuple[str, ...]]]]:
        """The replicas of each side that is a service: label and rows, the head first."""
        tables = ((side.label, replica_rows(side.measurement)) for side in self.sides)
        return [(label, rows) for label, rows in tables if rows]

    @property
    def compared(self) -> bool:
        """Whether a side has a baseline to compare with."""
        return any(side.history is not None and side.history.stored is not None for side in self.sides)

    @property
    def ratio(self) -> bool:
        """Whether a metric has a ratio of side B to side A."""
        return any(row.ratio for group in self.metrics.groups for row in group.main)


def test_page(test: TestResult, number: int, read: ReadBaseline, kind: str, out: Path) -> TestPage:
    """Everything about one test; what cannot be read is said, and the rest is there.

    Args:
        number: of the test on the page.
        out: folder of the page, from which links lead to traces.
        read: gives the test's baseline.
        kind: the hardware kind of all tests of the page; "" for several kinds.
    """
    names = labels(test.measurements)
    histories = [
        history(test, measurement, name, read) if measurement.baseline is not None else None
        for name, measurement in zip(names, test.measurements, strict=True)
    ]
    problem = drawn = ""
    try:
        drawn = figures(test.measurements, names)
    except BaselineError as error:
        problem = str(error)
    differing, shared = _conditions([measurement.conditions for measurement in test.measurements])
    worst_first = sorted(test.checks, key=lambda check: -check.verdict.severity)
    return TestPage(
        anchor=f"test-{number}",
        title=title(test.test, kind),
        test=test,
        claims=tuple((check, in_words(check)) for check in worst_first),
        sides=tuple(Side(*side) for side in zip(names, test.measurements, histories, strict=True)),
        differing=differing,
        shared=shared,
        metrics=metric_table([
            ComparedSide(measurement, None if past is None else past.stored, tuple(comparisons_of(test, measurement)))
            for measurement, past in zip(test.measurements, histories, strict=True)
        ]),
        servers=servers_of(test),
        searches=searches(test),
        figures="".join([drawn, *(chart for past in histories if past is not None for chart in past.charts)]),
        problem=problem,
        profiles=tuple(_profile_table(profile, names, test.folder, out) for profile in test.profiles),
    )


def _profile_table(profile: Profile, names: Sequence[str], folder: Path | None, out: Path) -> ProfileTable:
    """Shares in percent: those of the breakdown, and the share of the all-reduces, which overlaps them."""
    label = names[profile.measurement - 1] if 0 < profile.measurement <= len(names) else str(profile.measurement)
    *links, nsys = ["" if not file else quote(Path(os.path.relpath((folder or out) / file, out)).as_posix())
                    for file in (*profile.files, profile.nsys)]
    links = links or [""] * len(profile.ranks)
    shares = [{**shares_by_heading(rank), "all-reduces": rank.all_reduce_share} for rank in profile.ranks]
    rows = tuple((link, tuple(f"{100 * share:.1f} %" for share in of_rank.values()))
                 for link, of_rank in zip(links, shares, strict=False))
    device, headings = (profile.ranks[0].device, tuple(shares[0])) if profile.ranks else ("", ())
    return ProfileTable(label, profile.problem, device, headings, rows, nsys)


def _conditions(
    each: Sequence[Mapping[str, str]]
) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], tuple[tuple[str, str], ...]]:
    """The conditions that differ between the sides, and the conditions that are equal on all sides."""
    names = sorted({name for conditions in each for name in conditions})
    rows = [(name, tuple(_short(conditions.get(name, "absent")) for conditions in each)) for name in names]
    differing = tuple(row for row in rows if len(set(row[1])) > 1)
    return differing, tuple((name, values[0]) for name, values in rows if len(set(values)) == 1)


def _short(value: str) -> str:
    """The first digits of a digest, which suffice to distinguish digests."""
    return f"{value[:12]}…" if _DIGEST.fullmatch(value) else value


def counts(tests: Sequence[TestResult]) -> list[tuple[str, int]]:
    """How many tests came to which outcome, worst first."""
    return sorted(Counter(test.outcome for test in tests).items(), key=lambda pair: -severity(pair[0]))


def pack(text: str) -> str:
    """HTML that the page's script unpacks when somebody opens the test."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode()


LOG_LINES = 60


@dataclass(frozen=True, slots=True)
class ServerLog:
    """One process of a server start."""

    name: str
    command: str
    tail: tuple[str, ...]
    path: str


def servers_of(test: TestResult) -> tuple[ServerLog, ...]:
    """Logs of the servers of a test's runs and of their companion processes; empty if the run folder is missing."""
    if test.folder is None:
        return ()
    starts = sorted({run.start_id for measurement in test.measurements for run in measurement.runs})
    place = test.folder / "servers" / test.worker
    folders = [log_folder for start in starts for log_folder in sorted(place.glob(f"{start:02d}-*"))]
    return tuple(log for folder in folders for log in _logs(folder, test.folder))


def _logs(folder: Path, run_folder: Path) -> Iterator[ServerLog]:
    """Logs in the run folder; a folder of servers that is a link to another place has none."""
    for path in sorted(folder.rglob("*.log")):
        try:
            check_inside(path, run_folder)
            command = read_text(path.parent / COMMAND_FILE, run_folder).strip()
        except FileNotFoundError:
            command = ""
        except OSError:
            continue
        tail = tail_lines(path, LOG_LINES)
        if path.name == "watchdog.log" and not tail:
            continue
        yield ServerLog(
            name=str(path.parent.relative_to(run_folder / "servers")),
            command=command,
            tail=tuple(tail),
            path=str(path.relative_to(run_folder)),
        )
