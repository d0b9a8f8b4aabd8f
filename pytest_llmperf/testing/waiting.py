"""Waits of tests for a condition in another process, with timeouts that suit a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], limit_s: float = 60.0) -> T:
    """Evaluate a condition every 5 ms until it holds, and return its value.

    The limit is long, so that a slow machine does not reach it.

    Raises:
        TimeoutError: the condition did not hold within the limit.
    """
    deadline_s = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            raise TimeoutError("the condition never held")
        time.sleep(0.005)
    return value
