"""A supervised server: what this process knows of it, and the way to end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from pytest_llmperf.clock import Clock, SystemClock, seconds
from pytest_llmperf.errors import EngineError, EnvironmentMissing, Evidence, StopFailed

from . import leftovers, shm, tree
from .kernel import KILL_WAIT_S, end_child, kill_child, write_line
from .launch import Launch
from .unit import STOP_COMMAND_S, WATCHDOG_TAG, Reaped, StopReport, write_report

LIST_TIMEOUT_S = 5.0
VALID_S = 2.0  # a container's processes are asked for with each sample of a GPU that shows an unknown process


class ContainerProcesses:
    """Process ids of a container on the host.

    Args:
        argv: prints the ids, such as `docker top NAME -eo pid`; empty: there is no container, or it cannot be asked.
        env: environment of the command.
        clock: measures the age of an answer.
    """

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str], clock: Clock) -> None:
        self._argv = argv
        self._env = dict(env)
        self._clock = clock
        self._pids: tuple[int, ...] = ()
        self._asked_ns: int | None = None

    def pids(self) -> tuple[int, ...]:
        """The process ids, at most 2 s old; none if the container has ended or the command fails."""
        if not self._argv:
            return ()
        now_ns = self._clock.now_ns()
        if self._asked_ns is None or now_ns - self._asked_ns >= seconds(VALID_S):
            self._pids = self._listed()
            self._asked_ns = self._clock.now_ns()
        return self._pids

    def _listed(self) -> tuple[int, ...]:
        try:
            completed = subprocess.run(self._argv, env=self._env, capture_output=True, text=True, check=False,
                                       timeout=LIST_TIMEOUT_S, stdin=subprocess.DEVNULL, errors="replace")
        except (OSError, subprocess.TimeoutExpired):
            return ()
        words = completed.stdout.split() if completed.returncode == 0 else []  # the first line may be a heading
        return tuple(int(word) for word in words if word.isdecimal())


ERRORS = "watchdog.log"
HANDSHAKE_S = 20.0
STOP_MARGIN_S = 15.0  # the watchdog waits 10 s after SIGKILL before it names survivors


class Status:
    """What the watchdog has said so far, and the way to talk to it.

    A thread blocks on the status pipe, so news takes no polling.

    Attributes:
        started: set when the server process runs, could not be started, or the watchdog is gone.
        exited: set when the server process has ended.
        finished: set when the watchdog has said its last word.
        segments: shared memory that the server's processes created.
    """

    def __init__(self, watchdog: subprocess.Popen[bytes]) -> None:
        self.started = threading.Event()
        self.exited = threading.Event()
        self.finished = threading.Event()
        self.identity: tree.Identity | None = None
        self.ending: str | None = None
        self.failure: str | None = None
        self.missing = False
        self.report: StopReport | None = None
        self.segments: set[shm.Segment] = set()
        self._watchdog = watchdog
        self._sending = threading.RLock()  # a signal handler may stop the server, too
        self._thread = threading.Thread(target=self._read, name=f"llmperf-status-{watchdog.pid}", daemon=True)
        self._thread.start()

    def send(self, line: str) -> None:
        """Write one line of JSON; a watchdog that has ended ignores it, and `finished` is then true."""
        with self._sending:
            write_line(self._watchdog, line)

    def hang_up(self) -> None:
        """Close the control pipe, which ends everything below the watchdog."""
        with self._sending, suppress(OSError):
            if self._watchdog.stdin is not None:
                self._watchdog.stdin.close()

    def join(self, limit_s: float) -> None:
        """Wait for the end of the reading thread and close the status pipe.

        A thread that goes on after `limit_s` waits for a lock that an interrupt left locked. Its pipe stays
        open, because a pipe that a thread reads cannot be closed.
        """
        self._thread.join(limit_s)
        if self._watchdog.stdout is not None and not self._thread.is_alive():
            self._watchdog.stdout.close()

    def _read(self) -> None:
        for line in self._watchdog.stdout or ():
            with suppress(ValueError):  # a torn last line of a killed watchdog
                self._take(json.loads(line))
        if self.ending is None:
            self.ending = "signal 9 (SIGKILL), because its watchdog was lost"
        for event in (self.started, self.exited, self.finished):
            event.set()

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "started":
                self.identity = tree.Identity(event["pid"], event["starttime"])
                self.started.set()
            case "failed":
                self.failure, self.missing = event["error"], event["missing"]
                self.ending = "never started"
                self.exited.set()
                self.started.set()
            case "exited":
                self.ending = tree.describe_status(event["status"])
                self.exited.set()
            case "segments":
                self.segments |= {shm.Segment(*segment) for segment in event["created"]}
            case "stopped":
                self.report = StopReport.from_json(event["report"])


class Supervised:
    """A server process, everything below it, and the watchdog above it.

    A thread may wait for the server's exit while a second thread stops the server. Any end of this process also ends
    the server.

    Attributes:
        launch: what was started, with its tag.
        report: what the stop took; None before the stop.
    """

    @classmethod
    def start(cls, launch: Launch, clock: Clock | None = None) -> Supervised:
        """Start a server under a watchdog of its own.

        Whatever interrupts this call, nothing is left running: the watchdog ends with its control pipe.

        Args:
            launch: description of the command; a missing `run_dir` is created.
            clock: stamps the start, for `Evidence.elapsed_s`.

        Raises:
            EnvironmentMissing: the program does not exist or is not executable.
            EngineError: the start failed for a different reason.
        """
        if not sys.platform.startswith("linux"):
            raise EngineError("supervising a server needs Linux (/proc, prctl, pidfd); use endpoint(...) elsewhere")
        launch.prepare()
        tag = launch.tag or str(leftovers.new_tag(os.urandom(6).hex()))
        server = cls(replace(launch, tag=tag), clock or SystemClock())
        try:
            server._begin()
        except BaseException:
            server._abandon()
            raise
        return server

    def __init__(self, launch: Launch, clock: Clock) -> None:
        self.launch = launch
        self._clock = clock
        self._started_ns = clock.now_ns()
        self.report: StopReport | None = None
        self._lock = threading.RLock()
        self._unit = launch.unit(astuple(leftovers.new_tag("").parent))
        self._segments = shm.Attribution()
        self._container = ContainerProcesses(launch.pids_argv, launch.env, clock)
        self._on_gone: list[Callable[[], object]] = []
        with launch.open_log(ERRORS) as errors:
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("watchdog.py"))],
                env={**os.environ, WATCHDOG_TAG: launch.tag},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._status = Status(self._watchdog)

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"running with pid {self.pid}" if self.ending() is None else f"exited with {self.ending()}"
        return f"<Supervised {Path(self.launch.argv[0]).name} {state}>"

    @property
    def pid(self) -> int:
        """Process id of the server itself."""
        assert self._status.identity is not None, "start() returns after the server has a process"
        return self._status.identity.pid

    def ending(self) -> str | None:
        """ "exit code 2", "signal 9 (SIGKILL)", …; None while it runs. Costs no system call: the watchdog reports the
        end."""
        return self._status.ending if self._status.exited.is_set() else None

    def wait_exit(self, timeout_s: float | None = None) -> str | None:
        """Wait until the server process has ended; its ending, or None after `timeout_s`."""
        self._status.exited.wait(timeout_s)
        return self.ending()

    def pids(self) -> tuple[int, ...]:
        """The living processes of this server, wherever they detached themselves to, those of its container among them;
        not the watchdog."""
        if self._status.finished.is_set():  # the watchdog has ended
            return ()
        below = (stat.identity.pid for stat in tree.descendants(self._watchdog.pid) if stat.alive)
        return (*below, *self._container.pids())

    def evidence(self, n_lines: int = 200) -> Evidence:
        """Evidence about a failure, with secrets masked."""
        elapsed_s = (self._clock.now_ns() - self._started_ns) / 1e9
        return self.launch.evidence(self.ending() or "running", elapsed_s, n_lines)

    def on_gone(self, callback: Callable[[], object]) -> None:
        """Call this at the end of a `stop` that left nothing behind, e.g. to give a port back."""
        self._on_gone.append(callback)

    def stop(self, grace_s: float | None = None, *, keep: bool = False) -> StopReport:
        """End the server and everything below it. May be called again, also from another thread.

        Args:
            grace_s: seconds between SIGTERM and SIGKILL; the launch's own by default.
            keep: whether callbacks of `on_gone` wait for the next call, because the server will start again.

        Raises:
            StopFailed: something survived SIGKILL; its message names the pids.
        """
        grace_s = self.launch.grace_s if grace_s is None else grace_s
        self._status.send(json.dumps({"grace_s": grace_s}))
        self._status.finished.wait(grace_s + self._stop_margin_s())
        with self._lock:
            if self.report is None:
                self.report = self._status.report or self._stop_without_watchdog()
                self._close()
            report = self.report
        living = [p for p in report.survivors if tree.is_alive(tree.Identity(p.pid, p.starttime))]
        if living:
            named = ", ".join(f"{process.name} (pid {process.pid})" for process in living)
            pids = ",".join(str(process.pid) for process in living)
            raise StopFailed(f"still alive after SIGKILL: {named}. `ps -o pid,stat,wchan:30,cmd -p {pids}` shows the "
                             "kernel function that blocks the process. No server can start here until the process has "
                             "ended. Restart the host if it does not end.", self.evidence())
        with self._lock:
            callbacks, self._on_gone = ([], self._on_gone) if keep else (self._on_gone, [])
        for callback in callbacks:
            callback()
        return report

    def _begin(self) -> None:
        self._status.send(self._unit.to_json())
        self._status.started.wait(HANDSHAKE_S)
        if self._status.identity is not None:
            return
        reason = self._status.failure or "the watchdog did not start it"
        kind = EnvironmentMissing if self._status.missing else EngineError
        raise kind(f"cannot start {self.launch.argv[0]!r}: {reason}", self.evidence())

    def _abandon(self) -> None:
        self._status.hang_up()
        self._status.finished.wait(self.launch.abandoned_grace_s + self._stop_margin_s())
        self._close()

    def _stop_margin_s(self) -> float:
        return STOP_MARGIN_S + (STOP_COMMAND_S if self.launch.stop_argv else 0.0)

    def _stop_without_watchdog(self) -> StopReport:
        """The watchdog was killed or hangs: what bears our tag is killed from here."""
        began_ns = self._clock.now_ns()
        kill_child(self._watchdog)
        self._status.finished.wait(STOP_MARGIN_S)
        survivors = [leftover for leftover in leftovers.tagged() if str(leftover.tag) == self.launch.tag]
        self._segments.created |= self._status.segments
        swept = leftovers.kill(survivors, self._clock, segments=self._segments)
        self._unit.run_stop_command()
        report = StopReport(
            tag=self.launch.tag,
            why="watchdog lost",
            reaped=tuple(_reaped(leftover, "signal 9 (SIGKILL)") for leftover in swept.killed),
            survivors=tuple(_reaped(leftover, "alive") for leftover in swept.survivors),
            shm_removed=swept.shm_removed,
            shm_unproven=swept.shm_unproven,
            duration_s=(self._clock.now_ns() - began_ns) / 1e9,
        )
        write_report(self.launch.run_dir, report)
        return report

    def _close(self) -> None:
        self._status.hang_up()
        end_child(self._watchdog, KILL_WAIT_S)
        self._status.join(KILL_WAIT_S)
        errors = self.launch.run_dir / ERRORS
        if errors.exists() and errors.stat().st_size == 0:
            errors.unlink()


def _reaped(leftover: leftovers.Leftover, ending: str) -> Reaped:
    return Reaped(leftover.identity.pid, leftover.identity.starttime, leftover.name, ending, sigkill=True)
