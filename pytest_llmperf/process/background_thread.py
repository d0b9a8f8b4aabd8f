"""A task that runs in a background thread during a `with` block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run `work(done)` in a thread while the `with` block runs; the end of the block sets `done` and joins the thread.

    Args:
        work: function that checks `done` often and handles its exceptions, because the thread discards exceptions.
        name: name of the thread in stack dumps.
    """
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
