"""Simulations in several processes. Each item draws from a seed of its own, so the number of processes changes no
result."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

from pytest_llmperf.errors import InfrastructureError, LlmperfError
from pytest_llmperf.telemetry.cpu import read_cpu

Item = TypeVar("Item")
Result = TypeVar("Result")
END_WAIT_S = 5.0
MOST_JOBS = 64


def usable_cores() -> int:
    """CPUs that this process may use, at most 64."""
    return min(MOST_JOBS, read_cpu().cores)


def results_of(
    work: Callable[[Sequence[Item]], Iterable[Result]], items: Sequence[Item], jobs: int
) -> Generator[Result, None, None]:
    """Yields the results of `work` in the order of their completion.

    The worker processes are forked, so `work` and the items need not be picklable; the results must be. The workers end
    with this iterator or with the first error. If the parent process dies, each worker ends after its current result.

    Args:
        work: yields the results of the given items in sequence. No result is None.
        items: all items; every `jobs`-th of them goes to the same worker.
        jobs: number of worker processes.

    Raises:
        LlmperfError: `work` raised this error.
        InfrastructureError: a worker process died.
    """
    context = get_context("fork")
    started: dict[Connection, ForkProcess] = {}
    gc.collect()
    gc.freeze()  # or a collection in a child copies all that it shares with us
    try:
        for first in range(min(jobs, len(items))):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(work, items[first::jobs], theirs, [*started, ours]))
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


def _received(started: dict[Connection, ForkProcess]) -> Generator[Any, None, None]:
    going = dict(started)
    while going:
        for ready in wait(list(going)):
            if not isinstance(ready, Connection):
                continue
            try:
                answer = ready.recv()
            except EOFError:
                going[ready].join(END_WAIT_S)
                raise InfrastructureError(
                    f"A process of the calibration died (exit code {going[ready].exitcode}). The same command goes on "
                    "where this one stopped."
                ) from None
            if isinstance(answer, LlmperfError):
                raise answer
            if answer is None:
                del going[ready]
            else:
                yield answer


def _work(
    work: Callable[[Sequence[Item]], Iterable[Result]], items: Sequence[Item], to: Connection,
    others: Sequence[Connection],
) -> None:
    """Main function of a worker process. It sends its results, then None.

    If the parent has died, the pipe is broken and the worker ends.
    """
    for connection in others:
        connection.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends us
    with suppress(BrokenPipeError):
        try:
            for result in work(items):
                to.send(result)
            to.send(None)
        except LlmperfError as error:
            to.send(error)
