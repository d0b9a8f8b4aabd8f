"""What the watchdog gets on its control pipe, as one line of JSON, and its report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .scratch import write_whole

MOST_NAMED = 5  # segments in a message


@dataclass(frozen=True, slots=True)
class Reaped:
    """How one process of a unit ended.

    Args:
        pid: its process id.
        starttime: clock ticks since boot; with the pid its identity.
        name: as the kernel knew it.
        ending: "exit code 0", "signal 15 (SIGTERM)", or "collected by its own parent".
        sigkill: whether it needed SIGKILL.
    """

    pid: int
    starttime: int
    name: str
    ending: str
    sigkill: bool


@dataclass(frozen=True, slots=True)
class StopReport:
    """What stopping a unit took; also the content of `reaped.json`.

    Args:
        tag: of the unit.
        why: "stop", "parent gone", or "watchdog lost".
        reaped: the server, and every process that was alive when the stop began or that began later.
        survivors: processes that even SIGKILL did not end, as Reaped with ending "alive".
        shm_removed: names of shared-memory segments that the unit left behind and the stop removed.
        shm_unproven: names of unused segments that appeared while the unit ran; they stay, because their creator is
            unknown.
        duration_s: from the start of the stop to its end.
    """

    tag: str
    why: str
    reaped: tuple[Reaped, ...] = ()
    survivors: tuple[Reaped, ...] = ()
    shm_removed: tuple[str, ...] = ()
    shm_unproven: tuple[str, ...] = ()
    duration_s: float = 0.0

    @property
    def shm_note(self) -> str | None:
        """Note about shared-memory segments that were not removed; None if all were removed."""
        if not self.shm_unproven:
            return None
        shown = ", ".join(self.shm_unproven[:MOST_NAMED])
        more = len(self.shm_unproven) - MOST_NAMED
        return (f"Not removed from /dev/shm: {shown}{f' and {more} more' if more > 0 else ''}. The segments are "
                "unused, and their creator is unknown. Delete a segment if no other program needs the segment; "
                "reaped.json in the server's folder lists all names.")

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(asdict(self), indent=indent)

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> StopReport:
        """The report of a decoded JSON object."""
        processes = {key: tuple(Reaped(**process) for process in raw[key]) for key in ("reaped", "survivors")}
        segments = {key: tuple(raw[key]) for key in ("shm_removed", "shm_unproven")}
        return StopReport(**{**raw, **processes, **segments})


def write_report(run_dir: Path, report: StopReport) -> None:
    """Write `reaped.json` atomically. If the write fails, the clean-up continues without the file."""
    try:
        write_whole(run_dir / "reaped.json", f"{report.to_json(indent=2)}\n".encode(), durable=True)
    except OSError as error:
        print(f"reaped.json not written: {error}", file=sys.stderr)  # noqa: T201


TAG = "LLMPERF_TAG"
STOP_COMMAND_S = 10.0
WATCHDOG_TAG = "LLMPERF_WATCHDOG"


@dataclass(frozen=True, slots=True)
class ProcessUnit:
    """What a watchdog takes care of: a server, or only the process that measures.

    Args:
        tag: marks every process of the unit, in its environment.
        run_dir: where `reaped.json` goes.
        parent: pid and starttime of the process for which the unit runs.
        abandoned_grace_s: seconds between SIGTERM and SIGKILL when the parent has gone.
        argv: command line of the server; empty: no server is started.
        env: complete environment of the server.
        cwd: working directory.
        log_path: file for stdout and stderr.
        log_cap_bytes: size limit of the log file.
        cpus: CPUs on which the server may run; empty for all CPUs.
        needles: all spellings of secrets. The log contains `***` instead.
        shapes: texts that look like a secret, see `masking.Shape`.
        leader_first: the server ends its own children; those get a SIGTERM once the server has ended, or in the last
            3 s of the grace.
        stop_argv: command that runs after all processes of the unit have ended, however they ended.
        last_words: text that the watchdog writes to standard error and to `run_dir` if the parent ends without a stop.
    """

    tag: str
    run_dir: str
    parent: tuple[int, int]
    abandoned_grace_s: float
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "."
    log_path: str = ""
    log_cap_bytes: int = 0
    cpus: tuple[int, ...] = ()
    needles: Sequence[str] = ()
    shapes: Sequence[tuple[str, str, str, tuple[str, ...]]] = ()
    leader_first: bool = False
    stop_argv: tuple[str, ...] = ()
    last_words: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def run_stop_command(self) -> None:
        """Run `stop_argv`, for `STOP_COMMAND_S` at most. A failure means that nothing was left to stop."""
        if self.stop_argv:
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(self.stop_argv, env=dict(self.env), cwd=self.cwd, timeout=STOP_COMMAND_S, check=False,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
