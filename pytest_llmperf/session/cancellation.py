"""What ends a replay early: the server's death, or the clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pytest_llmperf.engines.server import Server
from pytest_llmperf.process.background_thread import in_background

DEATH_POLL_S = 0.05


@contextmanager
def cancelled_at_deadline(timeout_s: float, cancel: threading.Event) -> Iterator[threading.Event]:
    """Set `cancel` if the block takes longer than `timeout_s`. The yielded event is set in that case."""
    late = threading.Event()

    def give_up() -> None:
        late.set()
        cancel.set()

    timer = threading.Timer(timeout_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


@contextmanager
def cancelled_on_death(server: Server, cancel: threading.Event) -> Iterator[None]:
    """Set `cancel` as soon as a process of the server's unit ends."""
    if server.unit.process is None:
        yield
        return

    def watch(done: threading.Event) -> None:
        while not done.is_set():
            if server.unit.wait_death(DEATH_POLL_S):
                cancel.set()
                return

    with in_background(watch, "llmperf-death-watch"):
        yield
