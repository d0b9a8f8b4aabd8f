"""The interface of a transport, which replays a plan, and the progress of a replay. No verdict uses the progress."""

from __future__ import annotations

import threading
from array import array
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pytest_llmperf.load.recording import RecordingTail
from pytest_llmperf.model.exchange import EmulatedExchange, Exchange, Replay
from pytest_llmperf.model.plan import LoadPlan

CONTENT = b"data:"


class RunningMedians:
    """Running medians over the exchanges that ended, from the stamps of their reads. Nothing is parsed."""

    def __init__(self) -> None:
        self._ttfts_ns = array("q")
        self._gaps_ns = array("d")
        self.durations_ns: dict[int, int] = {}  # index of the request → time from send to end
        self.ended_reads = 0

    def add(self, exchange: Exchange | EmulatedExchange) -> None:
        """Take in one exchange; one without content does not change the medians."""
        if exchange.sent_ns is not None:
            self.durations_ns[exchange.index] = exchange.ended_ns - exchange.sent_ns
            self.ended_reads += 0 if isinstance(exchange, EmulatedExchange) else len(exchange.read_ns)
        stamps = exchange.token_ns if isinstance(exchange, EmulatedExchange) else _content_stamps(exchange)
        if not stamps:
            return
        insort(self._ttfts_ns, stamps[0] - exchange.intended_ns)
        if len(stamps) > 1:
            insort(self._gaps_ns, (stamps[-1] - stamps[0]) / (len(stamps) - 1))

    @property
    def ttft_ns(self) -> int | None:
        """Median time from the intended send to the first content."""
        return self._ttfts_ns[len(self._ttfts_ns) // 2] if self._ttfts_ns else None

    @property
    def itl_ns(self) -> int | None:
        """Median over requests of their mean gap between reads."""
        return round(self._gaps_ns[len(self._gaps_ns) // 2]) if self._gaps_ns else None


def _content_stamps(exchange: Exchange) -> array[int]:
    """Stamps of the reads from the first event of the stream on: the HTTP head may come long before."""
    first, seen = exchange.data.find(CONTENT), 0
    if first < 0:
        return array("q")
    for read, size in enumerate(exchange.read_bytes):
        seen += size
        if seen > first:
            return exchange.read_ns[read:]
    return array("q")


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a replay, reported about four times a second.

    Args:
        sent: requests handed to a socket.
        done: ended requests, whether successful or failed.
        failed: ended requests with an incomplete HTTP message.
        elapsed_ns: since time zero of the schedule.
        ttft_ns, itl_ns: running medians as `RunningMedians` has them; None before the first answer.
        durations_ns: time from send to end of each ended request, by the index of the request.
        reads: number of reads of all answers, those of requests in flight included; 0 in virtual time.
        ended_reads: number of reads of the requests in `durations_ns`.
    """

    sent: int
    done: int
    failed: int
    elapsed_ns: int
    ttft_ns: int | None = None
    itl_ns: int | None = None
    durations_ns: Mapping[int, int] = field(default_factory=dict)
    reads: int = 0
    ended_reads: int = 0


class Transport(Protocol):
    """Anything that can replay a plan against a server, or pretend to."""

    def replay(
        self,
        plan: LoadPlan,
        *,
        cancel: threading.Event,
        progress: Callable[[Progress], None] | None = None,
    ) -> Replay:
        """Send every request of the plan and return one exchange for each.

        Once `cancel` is set, what is in flight ends as CANCELLED and what was not sent as NOT_SENT.

        Raises:
            LoadError: the load generator itself failed.
        """
        ...


class RecordingProcess:
    """A load process, seen through its recording and its exit status.

    Attributes:
        plan: its part of the plan.
        recording: path of the recording on this host.
        host: name of the load host; empty for this machine.
        tail: reads the recording while the load process writes.
        last: last progress report.
        ready: whether the process waits for the start of the schedule, or has started.
        hung: whether the load process had to be killed, because it did not end.
        status, error_line: exit status and last line of its standard error, once it has ended.
    """

    def __init__(self, plan: LoadPlan, recording: Path, host: str = "") -> None:
        self.plan, self.recording, self.host = plan, recording, host
        self.tail = RecordingTail(recording)
        self.last = Progress(0, 0, 0, 0)
        self.ready = self.hung = False
        self.status, self.error_line = 0, ""


def progress_of_all(workers: Sequence[RecordingProcess], medians: RunningMedians) -> Progress:
    """The sum of the progress of load processes.

    Args:
        medians: latencies so far, from the recordings: a load process computes nothing.
    """
    for worker in workers:
        for exchange in worker.tail.exchanges():
            medians.add(exchange)
    reports = [worker.last for worker in workers]
    return Progress(
        sum(report.sent for report in reports),
        sum(report.done for report in reports),
        sum(report.failed for report in reports),
        max(report.elapsed_ns for report in reports),
        medians.ttft_ns,
        medians.itl_ns,
        medians.durations_ns,
        sum(report.reads for report in reports),
        medians.ended_reads,
    )
