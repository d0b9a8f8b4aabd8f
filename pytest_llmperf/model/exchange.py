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
    ABANDONED = "cancelled by the client"      # as the workload states
    NOT_SENT = "not sent"
    NOT_CONTINUED = "not sent, because the turn before has no complete answer"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer, unparsed. Times are CLOCK_MONOTONIC nanoseconds.

    Args:
        index: the request's position in its workload.
        intended_ns: intended send time.
        sent_ns: time at which the request was written to the socket; None if the request was never sent.
        ended_ns: time at which the last byte arrived or the load generator gave up.
        ending: how the exchange ended.
        read_ns: one stamp per read: the time at which the kernel received the last bytes of the read. Without a kernel
            stamp, the time of the read.
        read_bytes: size of each read; as long as `read_ns`.
        data: all bytes of the answer, HTTP framing included.
        reused: whether the connection had served a request before.
        error: error message of the operating system; None without an error.
        attempts: number of sends. Reads and data are of the last attempt, `sent_ns` is of the first.
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
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class EmulatedExchange:
    """The emulated record of a request and its answer. In virtual time there are no bytes to parse.

    Args:
        index, intended_ns, sent_ns, ended_ns, ending, attempts: as in `Exchange`.
        outcome: the outcome that the bytes of the answer would have had.
        error: error message of the server, if the server refused the request or ended the answer with an error.
        token_ns, token_counts: times at which a client would have read tokens, and the number of tokens at each time.
        prompt_tokens, output_tokens, cached_tokens: the counts of the usage; None if the answer has no usage.
    """

    index: int
    intended_ns: int
    sent_ns: int | None
    ended_ns: int
    ending: Ending
    outcome: Outcome
    error: str | None
    token_ns: tuple[int, ...]
    token_counts: tuple[int, ...]
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class HostReport:
    """What one load host contributed to a replay, and how its clock compares with the clock of this machine.

    Args:
        name: address and hostname.
        processes: load processes.
        requests: its share of the requests.
        start_delay_ns: from the agreed start of the schedule to the start on this host.
        clock_offset_ns: its time minus our time, when the host began to send.
        clock_error_ns: largest possible error of a converted time during the replay.
        drift_ppm, drift_error_ppm: rate of its clock against ours minus 1, and the largest error of this rate.
        cpu_ns: CPU time that its load processes used.
    """

    name: str
    processes: int
    requests: int
    start_delay_ns: int
    clock_offset_ns: int
    clock_error_ns: int
    drift_ppm: float | None
    drift_error_ppm: float | None
    cpu_ns: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How well the load generator itself did in one replay. Quantiles are upper edges of 65.5 µs wide bins.

    Args:
        processes: number of load processes.
        cpus: CPUs on which the load processes may run.
        own_cpus: whether started servers do not run on these CPUs.
        kernel_stamped: share of the reads that the kernel stamped as they arrived; None: nothing was read.
        stamp_error_p99_ns: largest error of a stamp: its delay (0 for a stamp of the kernel) plus the largest clock
            error of a load host.
        read_delay_p99_ns: time from the arrival of bytes in the kernel to their read. The delay changes no stamp, but
            it coalesces chunks. None if the kernel stamped no read.
        turnaround_p99_ns: closed loop only: from the end of an answer to the next request; None in an open loop.
        turnaround_total_ns: sum over all requests of a closed loop; 0 in an open loop.
        busy: CPU time over elapsed time of the busiest process.
        peak_memory_bytes: largest resident size, all processes together.
        hosts: the load hosts; empty if the load ran on this machine.
    """

    processes: int
    cpus: tuple[int, ...]
    own_cpus: bool
    kernel_stamped: float | None
    stamp_error_p99_ns: int
    read_delay_p99_ns: int | None
    turnaround_p99_ns: int | None
    turnaround_total_ns: int
    busy: float
    peak_memory_bytes: int
    hosts: tuple[HostReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay of a plan.

    Args:
        started_ns: time zero of the schedule.
        ended_ns: when the last exchange ended.
        exchanges: one per planned request, by index; `EmulatedExchange` in virtual time. An `Exchange` is read from its
            recording on access, so a caller limits memory by keeping no exchange longer than needed.
        loop_lag_ns: delay of the heartbeat of each load process, one value per heartbeat (every 50 ms).
        clock_gap_ns: longest time in which the event loop did not run (a suspended machine, a starved process).
        cpu_ns: CPU time that the load processes used during the replay.
        load: report of the load generator; None in virtual time, which sends no requests over sockets.
    """

    started_ns: int
    ended_ns: int
    exchanges: Sequence[Exchange | EmulatedExchange]
    loop_lag_ns: tuple[int, ...] = ()
    clock_gap_ns: int = 0
    cpu_ns: int = 0
    load: LoadReport | None = None
