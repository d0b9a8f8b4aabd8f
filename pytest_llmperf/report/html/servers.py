"""Logs of the servers of a test: the command line and the last lines of output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.bounded_file import check_inside, read_text
from pytest_llmperf.process.launch import COMMAND_FILE
from pytest_llmperf.process.serverlog import tail_lines
from pytest_llmperf.results.measurement import TestResult

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
