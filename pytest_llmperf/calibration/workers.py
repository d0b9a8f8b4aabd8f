"""Suite runs in several processes: each draws from its number alone, so it does not matter which process does which."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from pytest_llmperf.calibration.row import Row
from pytest_llmperf.errors import InfrastructureError, LlmperfError
from pytest_llmperf.telemetry.cpu import read_cpu

Work = Callable[[Sequence[int]], Iterable[Row]]
END_WAIT_S = 5.0
MOST_JOBS = 64


def usable_cores() -> int:
    """CPUs that this process may use, at most 64."""
    return min(MOST_JOBS, read_cpu().cores)


def rows_of(work: Work, numbers: Sequence[int], jobs: int) -> Generator[Row, None, None]:
    """The rows of so many suite runs, as they come.

    Processes are forked, so `work` may hold on to anything. They end with this iterator, with the first error, and,
    whatever ends this process, within a suite run.

    Args:
        work: does the suite runs of such numbers, one after the other.
        numbers: of all suite runs.
        jobs: processes.

    Raises:
        LlmperfError: `work` did.
        InfrastructureError: a process died.
    """
    context = get_context("fork")
    started: dict[Connection, ForkProcess] = {}
    gc.collect()
    gc.freeze()  # or a collection in a child copies all that it shares with us
    try:
        for first in range(min(jobs, len(numbers))):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(work, numbers[first::jobs], theirs, [*started, ours]))
            process.start()
            theirs.close()
            started[ours] = process
        yield from _received(started)
    finally:
        gc.unfreeze()
        for process in started.values():
            process.kill()  # it has nothing to put away; its emulators end with their pipes
        for process in started.values():
            process.join(END_WAIT_S)


def _received(started: dict[Connection, ForkProcess]) -> Iterator[Row]:
    going = dict(started)
    while going:
        for ready in wait(list(going)):
            if not isinstance(ready, Connection):
                continue
            try:
                said = ready.recv()
            except EOFError:
                going[ready].join(END_WAIT_S)
                raise InfrastructureError(
                    f"A process that did suite runs died (exit code {going[ready].exitcode}). The same command goes on "
                    "where this one stopped."
                ) from None
            if isinstance(said, LlmperfError):
                raise said
            if said is None:
                del going[ready]
            else:
                yield said


def _work(work: Work, numbers: Sequence[int], to: Connection, others: Sequence[Connection]) -> None:
    """In the child: None after the last row. A parent that has gone breaks the pipe, and that ends it."""
    for connection in others:
        connection.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends us
    with suppress(BrokenPipeError):
        try:
            for row in work(numbers):
                to.send(row)
            to.send(None)
        except LlmperfError as error:
            to.send(error)
