"""A task that runs in a background thread during a `with` block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run `work(done)` in a thread while the `with` block runs; the end of the block sets `done` and joins the thread.

    A signal handler's exception can strike inside `Thread.start`. Then `done` is set, and nobody waits for the thread:
    the exception may have left a lock of the thread locked, and the thread would never end.

    Args:
        work: function that checks `done` often and handles its exceptions, because the thread discards exceptions.
        name: name of the thread in stack dumps.
    """
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), daemon=True, name=name)
    started = False
    try:
        thread.start()
        started = True
        yield
    finally:
        done.set()
        if started:
            thread.join()
