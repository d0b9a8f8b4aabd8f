"""A load under way, whoever runs its processes, and its progress."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pytest_llmperf.load.recording import Recording, RecordingTail
from pytest_llmperf.load.running_medians import RunningMedians
from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.exchange import Replay
from pytest_llmperf.model.plan import LoadPlan


class RecordingProcess(Protocol):
    """A load process, seen through its recording and its exit status.

    Attributes:
        plan: its part of the plan.
        recording: path of the recording on this host.
        tail: reads the recording while the load process writes.
        last: last progress report.
        hung: whether the load process had to be killed, because it did not end.
    """

    plan: LoadPlan
    tail: RecordingTail
    last: Progress
    hung: bool

    @property
    def recording(self) -> Path: ...
    @property
    def status(self) -> int: ...
    @property
    def host(self) -> str:
        """Name of the load host; empty for this machine."""
        ...
    def last_error_line(self) -> str: ...


class RunningLoad(Protocol):
    """Several load processes that work as one: they start at the same time, and end all."""

    @property
    def workers(self) -> Sequence[RecordingProcess]: ...
    def wait(self, timeout_ms: int) -> bool:
        """Take reports for that long at most; whether some process still works."""
        ...
    def cancel(self) -> None:
        """Have all give up; calls after the first do nothing."""
        ...
    def replay(self, recordings: Sequence[Recording], plan: LoadPlan) -> Replay:
        """The replay of the plan from whole recordings, one for each of `workers`."""
        ...


class ProgressOfAll:
    """Sums the progress of load processes; latencies from the recordings, so a load process computes nothing."""

    def __init__(self) -> None:
        self._running_medians = RunningMedians()

    def of(self, workers: Sequence[RecordingProcess]) -> Progress:
        """The progress of all of them together."""
        for worker in workers:
            for exchange in worker.tail.exchanges():
                self._running_medians.add(exchange)
        reports = [worker.last for worker in workers]
        return Progress(
            sum(report.sent for report in reports),
            sum(report.done for report in reports),
            sum(report.failed for report in reports),
            max(report.elapsed_ns for report in reports),
            self._running_medians.ttft_ns,
            self._running_medians.itl_ns,
            self._running_medians.durations_ns,
            sum(report.reads for report in reports),
            self._running_medians.ended_reads,
        )
