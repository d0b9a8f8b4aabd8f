"""The process that outlives its parent by a few seconds, to leave nothing of a server behind.

Run by path, isolated from site-packages (`python -I -S watchdog.py`), in a session of its own. Standard input is
the control pipe: first a `ProcessUnit` as one line of JSON, then `{"grace_s": 10}`, which means stop. So does its end,
however the parent came to it. Standard output takes one JSON line per event:

    {"event": "started", "pid": …, "starttime": …}
    {"event": "failed", "error": …, "missing": …}                the server could not be started
    {"event": "exited", "status": …}                             status of the server as of waitpid
    {"event": "segments", "created": [[name, device, inode], …]} shared memory that a descendant created
    {"event": "stopped", "report": …}                            the last line

A unit without a command watches the process that measures: `last_words` are for the case that nobody says stop.

PR_SET_PDEATHSIG alone does not suffice, because the kernel sends that signal to direct children only, and not to their
children. It ends the direct children if the watchdog itself is killed.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from pathlib import Path

if not __package__:  # started by path: make the siblings importable (PEP 366)
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    __package__ = "process"

from . import kernel, shm, tree
from .reaper import Reaper
from .serverlog import Drain
from .streammask import StreamMask
from .unit import ProcessUnit, StopReport, write_report

CONTROL, STATUS, STDERR = 0, 1, 2
STEP_S = 0.02
PARENT_GONE = "parent gone"
LAST_WORDS = "ended_without_verdict.txt"


class Watchdog:
    """Starts a server, reports its end, and ends all that is below it on an order or after the session died."""

    def __init__(self, unit: ProcessUnit, control: bytes = b"") -> None:
        self._unit = unit
        self._selector = selectors.DefaultSelector()
        self._reaper = Reaper(self._exited, leader_first=unit.leader_first)
        self._server_pid: int | None = None
        self._drain: Drain | None = None
        self._segments = SegmentWatch()
        self._why = "stop"
        self._control = control  # what came behind the unit, or a part of an order

    def run(self) -> None:
        try:
            self._serve()
        except Exception:  # a fault of ours must not cost the clean-up
            traceback.print_exc()
            self._reaper.begin(0.0)
            while not self._reaper.step():
                time.sleep(STEP_S)
        self._finish()

    def _serve(self) -> None:
        self._listen()
        if self._unit.argv and not self._reaper.stopping:
            self._start()
        self._obey(b"")
        while not self._reaper.step():
            for key, _ in self._selector.select(STEP_S if self._reaper.stopping else self._segments.due_in_s()):
                key.data()
            if self._segments.due_in_s() == 0:
                self._segments.look()

    def _listen(self) -> None:
        self._selector.register(CONTROL, selectors.EVENT_READ, self._on_control)
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the wake-up byte is written
        signal.set_wakeup_fd(wake)
        self._selector.register(woken, selectors.EVENT_READ, lambda: self._on_child(woken))
        if self._unit.argv and self._segments.handle is not None:  # a session's watchdog sleeps until its end
            self._selector.register(self._segments.handle, selectors.EVENT_READ, self._segments.on_new_files)
        self._watch_parent()

    def _watch_parent(self) -> None:
        """Watch the parent with a pidfd, because a fork of the parent can hold the control pipe open after its end."""
        pid, starttime = self._unit.parent
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            handle = None
        if handle is None or tree.identity_of(pid) != tree.Identity(pid, starttime):
            self._abandoned()
        else:
            self._selector.register(handle, selectors.EVENT_READ, lambda: self._parent_ended(handle))

    def _start(self) -> None:
        unit = self._unit
        try:
            drain = Drain(Path(unit.log_path), unit.log_cap_bytes, StreamMask(unit.needles, unit.shapes))
            prepare = partial(kernel.prepare_child, os.getpid(), unit.cpus)
            with drain.write_end as output:
                child = subprocess.Popen(
                    unit.argv, env=unit.env, cwd=unit.cwd, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=prepare,  # noqa: PLW1509
                )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            missing = isinstance(error, FileNotFoundError | PermissionError)
            _report_event(event="failed", error=str(error), missing=missing)
            self._reaper.begin(0.0)
            return
        child.returncode = 0  # the reaper collects it; Popen shall not try
        self._drain, self._server_pid = drain, child.pid
        self._selector.register(drain.read_end, selectors.EVENT_READ, lambda: self._on_output(drain))
        self._reaper.watch(child.pid)
        identity = tree.identity_of(child.pid)
        _report_event(event="started", pid=child.pid, starttime=identity.starttime if identity else 0)

    def _on_output(self, drain: Drain) -> None:
        if drain.read() == 0:
            self._selector.unregister(drain.read_end)

    def _on_child(self, woken: int) -> None:
        os.read(woken, 4096)
        self._reaper.collect()

    def _exited(self, pid: int, status: int) -> None:
        if pid == self._server_pid and self._drain is not None:
            self._server_pid = None  # a later process may get the same pid
            self._drain.last_words()  # in the log before its end is known
            _report_event(event="exited", status=status)
            self._segments.look()

    def _on_control(self) -> None:
        data = os.read(CONTROL, 65536)
        if not data:
            self._selector.unregister(CONTROL)
            self._abandoned()
        self._obey(data)

    def _obey(self, data: bytes) -> None:
        *lines, self._control = (self._control + data).split(b"\n")
        for line in lines:
            self._begin(float(json.loads(line)["grace_s"]))

    def _parent_ended(self, handle: int) -> None:
        self._selector.unregister(handle)  # it stays readable
        self._abandoned()

    def _abandoned(self) -> None:
        if not self._reaper.stopping:
            self._why = PARENT_GONE
        self._begin(self._unit.abandoned_grace_s)

    def _begin(self, grace_s: float) -> None:
        if not self._reaper.stopping:
            self._segments.look()
        self._reaper.begin(grace_s)

    def _finish(self) -> None:
        self._unit.run_stop_command()
        if self._drain is not None:
            with suppress(OSError):  # a full disk
                self._drain.close()
        if self._unit.last_words and self._why == PARENT_GONE:
            _say(self._unit.last_words, Path(self._unit.run_dir))
        if self._unit.argv:
            self._report_stop()

    def _report_stop(self) -> None:
        cleaned = self._segments.attribution.clean_up()
        duration_ns = time.monotonic_ns() - self._reaper.started_ns
        report = StopReport(
            tag=self._unit.tag,
            why=self._why,
            reaped=tuple(self._reaper.reaped()),
            survivors=tuple(self._reaper.survivors()),
            shm_removed=cleaned.removed,
            shm_unproven=cleaned.unproven,
            duration_s=duration_ns / 1e9,
        )
        write_report(Path(self._unit.run_dir), report)
        _report_event(event="stopped", report=json.loads(report.to_json()))


def _pids_below() -> Iterator[int]:
    """Reads /proc only when the first pid is asked for."""
    for stat in tree.descendants(os.getpid()):
        yield stat.identity.pid


class SegmentWatch:
    """Looks whose shared memory is new, as soon as a segment appears.

    A look reads /proc of every process below this one. Another program may create segments all the time, so looks take
    at most a tenth of the time.

    Attributes:
        attribution: which segments the processes below this one created.
        handle: readable when a segment has appeared; None if inotify is unavailable.
    """

    def __init__(self) -> None:
        self.attribution = shm.Attribution()
        self.handle = kernel.watch_new_files(str(shm.FOLDER))
        self._pending = False
        self._rest_until_s = 0.0

    def on_new_files(self) -> None:
        if self.handle is not None:
            os.read(self.handle, 65536)
        self._pending = True

    def due_in_s(self) -> float | None:
        """Seconds until the next look; None if nothing has appeared."""
        return max(0.0, self._rest_until_s - time.monotonic()) if self._pending else None

    def look(self) -> None:
        began_s, self._pending = time.monotonic(), False
        created = self.attribution.look(_pids_below())
        if created:
            _report_event(event="segments", created=[astuple(segment) for segment in sorted(created)])
        ended_s = time.monotonic()
        self._rest_until_s = ended_s + 9 * (ended_s - began_s)


def _say(words: str, run_dir: Path) -> None:
    """Write the last words to a file in the run folder and to standard error. The measuring process itself is dead."""
    line = f"{words}\n".encode()
    for place in (run_dir / LAST_WORDS, STDERR):
        with suppress(OSError), open(place, "ab", buffering=0, closefd=place != STDERR) as file:
            file.write(line)


def _report_event(**event: object) -> None:
    try:
        os.write(STATUS, json.dumps(event).encode() + b"\n")
    except OSError:
        return  # nobody listens any more; the work goes on


def _read_line() -> tuple[bytes, bytes] | None:
    """The first line from the control pipe and the bytes after this line; None if the pipe ends before a newline."""
    data = b""
    while b"\n" not in data:
        chunk = os.read(CONTROL, 65536)
        if not chunk:
            return None
        data += chunk
    line, _, behind = data.partition(b"\n")
    return line, behind


def main() -> None:
    for signum in kernel.IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    kernel.adopt_orphans()
    if (read := _read_line()) is not None:
        line, behind = read
        Watchdog(ProcessUnit(**json.loads(line)), behind).run()


if __name__ == "__main__":
    main()
