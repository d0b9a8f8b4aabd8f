"""Something that goes on in a thread beside a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run `work(done)` in a thread while the block runs; `done` is set at its end, and `work` then returns soon.

    Args:
        work: looks at `done` often; what it raises is lost, so it handles what it expects.
        name: of the thread, for stack dumps.
    """
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
