"""Waits until a process that has just been started is ready."""

from __future__ import annotations

from collections.abc import Callable

from pytest_llmperf.clock import Clock
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.errors import EngineError, StartupTimeout, WrongServer
from pytest_llmperf.process.supervisor import Supervised

POLL_S = 0.1


def wait_ready(
    process: Supervised, name: str, attempt: Callable[[float], object], *, clock: Clock, started_ns: int,
    timeout_s: float, after_attempt: Callable[[float], object] = lambda _waited_s: None,
    ended: type[EngineError] = EngineError,
) -> None:
    """Ask until an attempt succeeds; fails at once when the process ends.

    Args:
        process: what answers the attempts.
        name: what messages call the process: "The router nginx".
        attempt: gets the seconds that are left. An EngineError or an error of httpx means: not ready.
        started_ns: time of the process start on the clock.
        timeout_s: longest wait since the start.
        after_attempt: called after each failed attempt with the seconds from the start to that attempt; an error ends
            the wait.
        ended: raised when the process ends.

    Raises:
        EngineError: the process ended, with its evidence.
        StartupTimeout: the process is not ready in time, with its evidence.
        WrongServer: an attempt met another server.
    """
    last = "it never answered"
    while (waited_s := (clock.now_ns() - started_ns) / 1e9) < timeout_s:
        if (ending := process.ending()) is not None:
            raise ended(f"{name} ended before it was ready: {ending}, after {waited_s:.1f} s. Read its log for the "
                        "reason.", process.evidence())
        try:
            attempt(timeout_s - waited_s)
        except WrongServer:
            raise
        except (httpx.HTTPError, EngineError) as error:
            last = f"{type(error).__name__}: {error}"
        else:
            return
        after_attempt(waited_s)
        process.wait_exit(POLL_S)
    raise StartupTimeout(f"{name} was not ready within {timeout_s:g} s; last: {last}. Raise ready_timeout_s if it is "
                         "only slow.", process.evidence())
