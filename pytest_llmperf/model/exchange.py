"""What the load generator saw: bytes and the nanosecond at which each read brought them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_llmperf.model.record import Outcome


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
        read_ns: one stamp per read: when the kernel received its last bytes, else when it was read.
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
class EmulatedExchange:
    """One request and its answer as an emulated engine itself tells it: in virtual time no bytes need to be read.

    Args:
        index, intended_ns, sent_ns, ended_ns, ending: as an exchange has them.
        outcome: what its bytes would have come to.
        error: what the server said where it refused, or broke off with an error.
        token_ns, token_counts: when a client would have read tokens, and how many at once.
        prompt_tokens, output_tokens, cached_tokens: as usage would have them; None where none came.
    """

    index: int
    intended_ns: int
    sent_ns: int
    ended_ns: int
    ending: Ending
    outcome: Outcome
    error: str | None
    token_ns: tuple[int, ...]
    token_counts: tuple[int, ...]
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How well the load generator itself did in one replay. Quantiles are upper edges of 65.5 µs wide bins.

    Args:
        processes: that shared the load.
        cpus: on which they may run.
        own_cpus: whether the servers that we start keep off these.
        kernel_stamped: share of the reads that the kernel stamped as they arrived; None: nothing was read.
        stamp_error_p99_ns: how late a stamp may be: 0 where the kernel stamped it.
        read_delay_p99_ns: how long bytes lay in the kernel before they were read; moves no stamp, coalesces chunks;
            None where the kernel stamped none.
        turnaround_p99_ns: closed loop only: from the end of an answer to the next request; None in an open loop.
        busy: CPU time over elapsed time of the busiest process.
        peak_memory_bytes: largest resident size, all processes together.
    """

    processes: int
    cpus: tuple[int, ...]
    own_cpus: bool
    kernel_stamped: float | None
    stamp_error_p99_ns: int
    read_delay_p99_ns: int | None
    turnaround_p99_ns: int | None
    busy: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay of a plan.

    Args:
        started_ns: time zero of the schedule.
        ended_ns: when the last exchange ended.
        exchanges: one per planned request, by index; told ones in virtual time. Those of sockets are read from their
            recording one by one, so hold none that is done with.
        loop_lag_ns: how late each load process ran its heartbeat, one value per beat (every 10 ms).
        clock_gap_ns: the largest time in which the loop did not run at all (a suspended machine, a starved process).
        cpu_ns: CPU time that the load processes used during the replay.
        load: how the load generator did; None where nothing was sent over sockets.
    """

    started_ns: int
    ended_ns: int
    exchanges: Sequence[Exchange | EmulatedExchange]
    loop_lag_ns: tuple[int, ...] = ()
    clock_gap_ns: int = 0
    cpu_ns: int = 0
    load: LoadReport | None = None
