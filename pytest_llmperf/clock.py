"""Time as an argument: integer nanoseconds of one monotonic clock."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from pytest_llmperf.errors import UsageError

CLOCK_FUNCTIONS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")


class Clock(Protocol):
    """A monotonic clock and a way to wait on it."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary fixed point; never goes back."""
        ...

    def sleep_ns(self, duration_ns: int) -> None:
        """Return no earlier than `duration_ns` from now."""
        ...


class SystemClock:
    """CLOCK_MONOTONIC, which every process of this host shares: stamps of a load process and of ours compare."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_ns(self, duration_ns: int) -> None:
        time.sleep(max(0, duration_ns) / 1e9)


Answer = TypeVar("Answer")


class VirtualClock:
    """A clock that jumps by each sleep, and to each time that an emulated engine sets."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def sleep_ns(self, duration_ns: int) -> None:
        self._now_ns += max(0, duration_ns)

    def advance_to(self, now_ns: int) -> None:
        """Jump ahead; a time that has passed changes nothing."""
        self._now_ns = max(self._now_ns, now_ns)

    def at_once(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """See `at_once`."""
        begun_ns = ended_ns = self._now_ns
        answers = []
        for call in calls:
            self._now_ns = begun_ns
            answers.append(call())
            ended_ns = max(ended_ns, self._now_ns)
        self._now_ns = ended_ns
        return answers


def at_once(clock: Clock, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """The answers of calls that begin at the same time, each in a thread. In virtual time each call begins at the same
    time of the clock, which then has the time of the last end.

    All calls end before an error of one of them is raised.
    """
    if isinstance(clock, VirtualClock):
        return clock.at_once(calls)
    from concurrent.futures import ThreadPoolExecutor, wait

    threads = ThreadPoolExecutor(len(calls))
    try:
        futures = [threads.submit(call) for call in calls]
        wait(futures)
        return [future.result() for future in futures]
    finally:
        threads.shutdown(wait=False)  # after a signal, the end of the servers ends the threads


def require_real_clock() -> None:
    """Refuse to measure while a library replaces the clock of this process: waits would not end, dates be false.

    Raises:
        UsageError: with the name of the library.
    """
    owners = {f"time.{name}": getattr(time, name).__module__ for name in CLOCK_FUNCTIONS}
    owners["datetime"] = datetime.datetime.__module__
    replaced = {name: owner for name, owner in owners.items() if owner != name.partition(".")[0]}
    time_machine = sys.modules.get("time_machine")  # replaces the functions inside, so that they keep their modules
    if time_machine is not None and time_machine.escape_hatch.is_travelling():
        replaced = {"time.time": "time_machine"}
    for name, owner in replaced.items():
        library = str(owner).partition(".")[0]
        raise UsageError(
            f"{library} replaces {name}, and a measurement needs the real clock. Remove the fixture, the decorator or "
            f"the block of {library} that is active while this test measures; an autouse fixture counts, too."
        )


def attempts(clock: Clock, timeout_s: float, pause_s: float) -> Iterator[None]:
    """Yield at once, and after each pause until the time is over: `for _ in attempts(…)` tries again and again."""
    deadline_ns = clock.now_ns() + seconds(timeout_s)
    yield
    while clock.now_ns() <= deadline_ns:
        clock.sleep_ns(seconds(pause_s))
        yield


def seconds(value_s: float) -> int:
    """Seconds as integer nanoseconds, rounded to the nearest."""
    return round(value_s * 1_000_000_000)


def milliseconds(value_ns: float) -> float:
    """Nanoseconds as milliseconds, for reports."""
    return value_ns / 1_000_000
