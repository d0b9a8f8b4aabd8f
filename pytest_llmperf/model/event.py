"""Events of a measurement: deaths and restarts of replicas that a test asks for while the load goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_llmperf.errors import refuse

Action = Literal["kill", "stop", "restart"]
#: Parts of a run with events, in the order of time.
PHASES = ("before", "during", "after")
#: Counters of a run with events: seconds from the first intended send to the first event, and to the end of the last.
DISTURBED_FROM, DISTURBED_UNTIL = "disturbed_from_s", "disturbed_until_s"


@dataclass(frozen=True, slots=True)
class Event:
    """A death or restart of one replica during each run of a measurement. Build one with `kill`, `stop` or `restart`.

    Args:
        action: what happens.
        pool: pool of the replica; "" for replicas without pools.
        replica: the replica, counted from 0.
        at_requests: share of the requests that are sent before the event.
    """

    action: Action
    pool: str
    replica: int
    at_requests: float

    def __repr__(self) -> str:
        pool = f"{self.pool!r}, " if self.pool else ""
        return f"{self.action}({pool}replica={self.replica}, at_requests={self.at_requests:g})"

    @property
    def part(self) -> str:
        """Name of the server in messages and reports, where servers are counted from 1: "2", "decode-1"."""
        return f"{self.pool}-{self.replica + 1}" if self.pool else str(self.replica + 1)

    def due(self, requests: int) -> int:
        """Number of requests that are sent before the event, of so many requests of a run."""
        return int(self.at_requests * requests)


@dataclass(frozen=True, slots=True)
class PastEvent:
    """An event that has happened.

    Args:
        began_ns: when the event began, on the session's clock.
        ended_ns: when all processes of the replica had ended, or when the restarted replica had generated a token.
    """

    began_ns: int
    ended_ns: int


def kill(pool: str = "", *, replica: int, at_requests: float) -> Event:
    """Kill a replica during each run: its processes end at once, as in a crash.

    Args:
        pool: pool of the replica, "prefill" or "decode"; left out for plain `replicas(…)`, which have no pools.
        replica: the replica of the pool, counted from 0: replica 0 is "replica 1" or "decode-1" in reports.
        at_requests: share of the requests that are sent before, above 0 and below 1.

    Raises:
        SpecError: an argument is invalid.
    """
    return _event("kill", pool, replica, at_requests)


def stop(pool: str = "", *, replica: int, at_requests: float) -> Event:
    """Ask a replica to stop during each run (SIGTERM), and kill it after `stop_grace_s`.

    Args:
        pool, replica, at_requests: as in `kill`.

    Raises:
        SpecError: an argument is invalid.
    """
    return _event("stop", pool, replica, at_requests)


def restart(pool: str = "", *, replica: int, at_requests: float) -> Event:
    """Start a replica again that an earlier event ended, at the same address and with the same flags.

    The event ends when the replica has generated a token. A run waits for this end.

    Args:
        pool, replica, at_requests: as in `kill`.

    Raises:
        SpecError: an argument is invalid.
    """
    return _event("restart", pool, replica, at_requests)


def _event(action: Action, pool: str, replica: int, at_requests: float) -> Event:
    call = f"{action}(replica={replica!r}, at_requests={at_requests!r})"
    refuse(
        (not isinstance(pool, str),
         f"{action}({pool!r}, …): the first argument names a pool, such as \"decode\". Name the "
         f"replica: {action}(replica=0, at_requests=0.25)."),
        (type(replica) is not int or replica < 0,
         f"{call}: replicas are counted from 0. Write a whole number, replica=0."),
        (isinstance(at_requests, bool) or not isinstance(at_requests, int | float) or not 0 < at_requests < 1,
         f"{call}: at_requests is the share of the requests that are sent before the event, above 0 and "
         "below 1. An event after the last request would disturb nothing. Write 0.25."),
    )
    return Event(action, pool, replica, float(at_requests))
