"""The watchdog's events, as they come: a thread blocks on the status pipe, so news takes no polling."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from subprocess import Popen
from typing import Any

from . import tree
from .shm import Segment
from .unit import StopReport


class Status:
    """What the watchdog has said so far, and the way to talk to it.

    Attributes:
        started: set when the server process runs, could not be started, or the watchdog is gone.
        exited: set when the server process has ended.
        finished: set when the watchdog has said its last word.
        segments: shared memory that the server's processes created.
    """

    def __init__(self, watchdog: Popen[bytes]) -> None:
        self.started = threading.Event()
        self.exited = threading.Event()
        self.finished = threading.Event()
        self.identity: tree.Identity | None = None
        self.ending: str | None = None
        self.failure: str | None = None
        self.missing = False
        self.report: StopReport | None = None
        self.segments: set[Segment] = set()
        self._pipes = watchdog.stdin, watchdog.stdout
        self._sending = threading.RLock()  # a signal handler may stop the server, too
        self._thread = threading.Thread(target=self._read, name=f"llmperf-status-{watchdog.pid}", daemon=True)
        self._thread.start()

    def send(self, order: dict[str, Any]) -> None:
        """Write one order; a watchdog that has ended ignores the order, and `finished` is then true."""
        control = self._pipes[0]
        with self._sending, suppress(OSError, ValueError):
            if control is not None:
                control.write(json.dumps(order).encode() + b"\n")
                control.flush()

    def hang_up(self) -> None:
        """Close the control pipe, which ends everything below the watchdog."""
        control = self._pipes[0]
        with self._sending, suppress(OSError):
            if control is not None:
                control.close()

    def join(self, limit_s: float) -> None:
        """Wait for the end of the reading thread and close the status pipe.

        A thread that goes on after `limit_s` waits for a lock that an interrupt left locked. Its pipe stays
        open, because a pipe that a thread reads cannot be closed.
        """
        self._thread.join(limit_s)
        if self._pipes[1] is not None and not self._thread.is_alive():
            self._pipes[1].close()

    def _read(self) -> None:
        lines = self._pipes[1]
        for line in lines or ():
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
                self.segments |= {Segment(*segment) for segment in event["created"]}
            case "stopped":
                self.report = StopReport.from_json(event["report"])
