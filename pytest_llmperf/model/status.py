"""Status of a session for its display. `phase` names the stage of the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Starting:
    """A server is started.

    Args:
        engine: the spec, as text, secrets masked.
        log_line: the last line of its log so far, secrets masked.
    """

    engine: str
    log_line: str = ""

    @property
    def phase(self) -> str:
        return f"starting {self.engine}"


@dataclass(frozen=True, slots=True)
class WarmingUp:
    """A server is warmed up."""

    engine: str

    @property
    def phase(self) -> str:
        return f"warming up {self.engine}"


@dataclass(frozen=True, slots=True)
class SearchRest:
    """The part of a search that follows the announced runs of the present rate. A rate that stays open gets more runs,
    so the duration has a range.

    Args:
        least_s, most_s: seconds if every further rate needs the smallest and the largest number of runs.
    """

    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class Measuring:
    """A run goes on.

    Args:
        run, runs: "run 2 of 3".
        requests: number of requests of the workload.
        done, failed: number of ended requests, and number of failed requests among them.
        elapsed_s: seconds since the start of the schedule.
        rate_asked: requests/s of the schedule; None in a closed loop.
        rate: ended requests per second so far; None before the first end.
        ttft_ms, itl_ms: medians over the ended requests, from the stamps of reads; None before the first end.
        left_s: estimated seconds until the last run ends; None if no estimate is possible.
        label: side of a claim or point of a search; "" for a single measurement.
        search: the rest of the search; None outside a search, and before its limit lies between two rates.
    """

    run: int
    runs: int
    requests: int
    done: int
    failed: int
    elapsed_s: float
    requested_rate: float | None = None
    rate: float | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    left_s: float | None = None
    label: str = ""
    search: SearchRest | None = None

    @property
    def phase(self) -> str:
        of = f"run {self.run} of {self.runs}"
        return f"{self.label}, {of}" if self.label else of


@dataclass(frozen=True, slots=True)
class Waiting:
    """The session waits for the stated reason."""

    reason: str

    @property
    def phase(self) -> str:
        return f"waiting: {self.reason}"


@dataclass(frozen=True, slots=True)
class Note:
    """Something happened that a reader should know later, too."""

    text: str


Status = Starting | WarmingUp | Measuring | Waiting | Note
Notify = Callable[[Status], None]


def ignore_status(_status: Status) -> None:
    """The listener of a session without a display."""
