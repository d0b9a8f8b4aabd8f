"""Waits of tests for a condition in another process, with timeouts that suit a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], limit_s: float = 60.0) -> T:
    """Ask every 5 ms until it holds; its value. The limit is there for what never comes, not for what comes late.

    Raises:
        TimeoutError: it never held.
    """
    deadline_s = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            raise TimeoutError("the condition never held")
        time.sleep(0.005)
    return value


def least(measure: Callable[[], float], under: float, attempts: int = 5) -> float:
    """The least of some measurements, of which the first one below `under` is the last: a busy machine only adds."""
    smallest = measure()
    for _ in range(attempts - 1):
        if smallest < under:
            break
        smallest = min(smallest, measure())
    return smallest
