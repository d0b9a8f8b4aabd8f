"""Shows what goes on to whoever watches: a live display on a terminal, lines anywhere else."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pytest_llmperf.clock import Clock, SystemClock, seconds
from pytest_llmperf.model.status import Measuring, Note, Starting, Status

MINUTE_S = 60


def sentence(status: Status, elapsed_s: float) -> str:
    """One line that can stand alone in a log.

    Args:
        elapsed_s: since the phase began.
    """
    if isinstance(status, Note):
        return status.text
    if isinstance(status, Measuring):
        return f"{status.phase}: {', '.join(facts(status))}"
    log_line = f": {status.log_line}" if isinstance(status, Starting) and status.log_line else ""
    return f"{status.phase}, {duration(elapsed_s)}{log_line}"


def facts(status: Measuring) -> Iterator[str]:
    """Facts about a run in progress, the most certain first."""
    yield f"{status.done} of {status.requests} answered"
    if status.failed:
        yield f"{status.failed} failed"
    if status.rate is not None:
        target_rate = "" if status.requested_rate is None else f" ({status.requested_rate:.3g}/s asked)"
        yield f"{status.rate:.3g}/s{target_rate}"
    if status.ttft_ms is not None:
        yield f"TTFT {status.ttft_ms:.3g} ms"
    if status.itl_ms is not None:
        yield f"ITL {status.itl_ms:.3g} ms"
    yield duration(status.elapsed_s)
    if status.left_s:
        yield f"{duration(status.left_s)} left"
    if status.search is not None and status.left_s is not None:
        least_s, most_s = status.left_s + status.search.least_s, status.left_s + status.search.most_s
        yield f"search: {duration(least_s)} to {duration(most_s)} left"


def duration(value_s: float) -> str:
    """A duration as text: "42 s", "3 min 5 s"."""
    whole_s = round(value_s)
    return f"{whole_s} s" if whole_s < MINUTE_S else f"{whole_s // MINUTE_S} min {whole_s % MINUTE_S} s"


TICK_S = 0.25
FIRST_LINE_S = 1.0  # a phase that ends before is no news: in virtual time nearly all do
EVERY_S = 10.0


class Watch(ABC):
    """Takes statuses from the thread that works and shows them from a thread of its own.

    So a call that blocks for minutes still shows its seconds passing, and telling costs an assignment.

    Args:
        clock: of the person who watches, never a virtual one.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.subject = ""  # what the statuses are about: a test
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._status: Status | None = None
        self._begun_ns = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def notify(self, status: Status) -> None:
        """Something goes on, or has happened."""
        with self._lock:
            if self._over.is_set():
                return
            if isinstance(status, Note):
                if isinstance(self._status, Measuring) and self._status.done == self._status.requests:
                    self.rest()  # the result of the run comes before what is said about the run
                self._note(status)
                return
            if self._status is None or isinstance(self._status, Note) or self._status.phase != status.phase:
                self._next_phase(status)
                self._begun_ns = self._clock.now_ns()
            self._status = status
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="llmperf-watch", daemon=True)
                self._thread.start()

    def rest(self) -> None:
        """End the display of the present status, so that others may write to the terminal."""
        with self._lock:
            if self._status is not None:
                self._next_phase(None)
            self._status = None

    def close(self) -> None:
        """Show nothing any more. May be called again."""
        self.rest()
        self._over.set()

    def tick(self) -> None:
        """Show what there is to show now; called four times a second."""
        with self._lock:
            if self._status is not None and not self._over.is_set():
                self._show(self._status, (self._clock.now_ns() - self._begun_ns) / 1e9)

    @abstractmethod
    def _show(self, status: Status, elapsed_s: float) -> None: ...

    @abstractmethod
    def _next_phase(self, status: Status | None) -> None:
        """The status before this one was the last of its phase."""

    @abstractmethod
    def _note(self, note: Note) -> None: ...

    def _run(self) -> None:
        while not self._over.wait(TICK_S):
            self.tick()


@dataclass(frozen=True, slots=True)
class Pace:
    """How often progress lines are printed.

    Args:
        first_s: into a phase, its first line.
        every_s: between two lines of one phase.
    """

    first_s: float = FIRST_LINE_S
    every_s: float = EVERY_S


class LineWatch(Watch):
    """A line when a phase has begun, one every ten seconds, and one with the result of every run.

    Args:
        write: takes one line, without its end.
    """

    def __init__(self, write: Callable[[str], None], clock: Clock | None = None, pace: Pace | None = None) -> None:
        super().__init__(clock)
        self._write = write
        self._pace = pace or Pace()
        self._told_ns: int | None = None  # of this phase; None: not yet
        self._last: Status | None = None

    def _show(self, status: Status, elapsed_s: float) -> None:
        now_ns = self._clock.now_ns()
        if self._told_ns is None:
            due = elapsed_s >= self._pace.first_s
        else:
            due = now_ns - self._told_ns >= seconds(self._pace.every_s)
        if due:
            self._told_ns = now_ns
            self._say(sentence(status, elapsed_s))
            self._last = status

    def _next_phase(self, status: Status | None) -> None:  # noqa: ARG002
        if self._told_ns is not None and isinstance(self._status, Measuring) and self._status != self._last:
            self._say(sentence(self._status, 0))
        self._told_ns = None

    def _note(self, note: Note) -> None:
        self._say(note.text)

    def _say(self, text: str) -> None:
        self._write(f"{self.subject}: {text}" if self.subject else text)
