"""What the load generator saw: bytes and the nanosecond at which each read brought them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import Enum


class Ending(Enum):
    """How one HTTP exchange ended, as the socket saw it."""

    COMPLETE = "complete"                      # the HTTP message ended as announced
    CONNECT_FAILED = "connect failed"
    CLOSED_EARLY = "closed early"              # FIN before the end of the message
    RESET = "connection reset"
    STALE = "stale connection"                 # a reused connection closed before any byte of the answer
    CONNECT_TIMEOUT = "connect timeout"
    FIRST_BYTE_TIMEOUT = "first byte timeout"
    IDLE_TIMEOUT = "idle timeout"
    TOTAL_TIMEOUT = "total timeout"
    TOO_LARGE = "response too large"
    CANCELLED = "cancelled"                    # the run was given up (the server died, the user interrupted)
    NOT_SENT = "not sent"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer, unparsed. Times are CLOCK_MONOTONIC nanoseconds.

    Args:
        index: the request's position in its workload.
        intended_ns: when the schedule wanted it sent.
        sent_ns: when its bytes were handed to the socket; None where that never happened.
        ended_ns: when the last byte came or the exchange was given up.
        ending: how it ended.
        read_ns: one stamp per read, taken first thing when the loop handed the bytes over.
        read_bytes: size of each read; as long as `read_ns`.
        data: all bytes of the answer, HTTP framing included.
        reused: whether the connection had served another request before.
        error: what the operating system said, where it said something.
    """

    index: int
    intended_ns: int
    sent_ns: int | None
    ended_ns: int
    ending: Ending
    read_ns: array[int]
    read_bytes: array[int]
    data: bytes
    reused: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay of a plan.

    Args:
        started_ns: time zero of the schedule.
        ended_ns: when the last exchange ended.
        exchanges: one per planned request, by index.
        loop_lag_ns: how late the event loop ran its heartbeat, one value per beat (every 10 ms).
        clock_gap_ns: the largest time in which the loop did not run at all (a suspended machine, a starved process).
        cpu_ns: CPU time that the load process used during the replay.
    """

    started_ns: int
    ended_ns: int
    exchanges: tuple[Exchange, ...]
    loop_lag_ns: tuple[int, ...] = ()
    clock_gap_ns: int = 0
    cpu_ns: int = 0
