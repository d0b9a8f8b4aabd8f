"""Orders to the watchdog on its control pipe, one line of JSON each."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass, field

TAG = "LLMPERF_TAG"
STOP_COMMAND_S = 10.0
WATCHDOG_TAG = "LLMPERF_WATCHDOG"


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a unit.

    Args:
        name: name of the process in events.
        argv: command line.
        env: complete environment of the process.
        cwd: working directory.
        log_path: file for stdout and stderr.
        log_cap_bytes: size limit of the log file.
        cpus: CPUs on which the process may run; empty for all CPUs.
        needles: all spellings of secrets. The log contains `***` instead.
        shapes: texts that look like a secret, see `masking.Shape`.
        stop_argv: command that runs after all processes of the unit have ended, however they ended.
    """

    name: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log_path: str
    log_cap_bytes: int
    cpus: list[int] = field(default_factory=list)
    needles: list[str] = field(default_factory=list)
    shapes: list[tuple[str, str, str, tuple[str, ...]]] = field(default_factory=list)
    stop_argv: list[str] = field(default_factory=list)

    def run_stop_command(self) -> None:
        """Run `stop_argv`, for `STOP_COMMAND_S` at most. A failure means that nothing was left to stop."""
        if self.stop_argv:
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(self.stop_argv, env=self.env, cwd=self.cwd, timeout=STOP_COMMAND_S, check=False,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@dataclass(frozen=True, slots=True)
class ProcessUnit:
    """Processes that live and end together.

    Args:
        tag: marks every process of the unit, in its environment.
        run_dir: where `reaped.json` goes.
        parent: pid and starttime of the process for which the unit runs.
        members: started in this order, stopped together.
        abandoned_grace_s: seconds between SIGTERM and SIGKILL when the parent has gone.
        leaders_first: members end their own children; those get a SIGTERM once their member has ended, or in the
            last 3 s of the grace.
        last_words: what the watchdog says on its standard error and in `run_dir` where the parent ends without a stop.
    """

    tag: str
    run_dir: str
    parent: list[int]
    members: list[Member]
    abandoned_grace_s: float
    leaders_first: bool = False
    last_words: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> ProcessUnit:
        raw = json.loads(text)
        return ProcessUnit(**{**raw, "members": [Member(**member) for member in raw["members"]]})
