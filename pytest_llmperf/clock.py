"""Time as an argument: integer nanoseconds of one monotonic clock."""

from __future__ import annotations

import time
from typing import Protocol


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


class VirtualClock:
    """A clock that only jumps: when somebody sleeps, or when an emulated engine says what time it is."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def sleep_ns(self, duration_ns: int) -> None:
        self._now_ns += max(0, duration_ns)

    def advance_to(self, now_ns: int) -> None:
        """Jump ahead; a time that has passed changes nothing."""
        self._now_ns = max(self._now_ns, now_ns)


def seconds(value_s: float) -> int:
    """Seconds as integer nanoseconds, rounded to the nearest."""
    return round(value_s * 1_000_000_000)


def milliseconds(value_ns: float) -> float:
    """Nanoseconds as milliseconds, for reports."""
    return value_ns / 1_000_000
