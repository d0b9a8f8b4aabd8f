"""A driver that hangs must not hang us."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call_with_timeout(work: Callable[[], T], timeout_s: float) -> T | None:
    """What `work` returns; None where that takes longer. The thread is left behind: nothing ends a driver call.

    Args:
        work: raises nothing.
    """
    answer: list[T] = []
    thread = threading.Thread(target=lambda: answer.append(work()), daemon=True, name="llmperf-nvml")
    thread.start()
    thread.join(timeout_s)
    return answer[0] if answer else None
