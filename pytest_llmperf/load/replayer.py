"""One replay inside the load process: schedule, client, heartbeat and recording on one event loop."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable
from time import monotonic_ns

from pytest_llmperf.load.client import Client
from pytest_llmperf.load.flight import Flight
from pytest_llmperf.load.handover import PROGRESS
from pytest_llmperf.load.recording import RecordingWriter
from pytest_llmperf.load.schedule import Schedule
from pytest_llmperf.model.exchange import Ending, Exchange
from pytest_llmperf.model.plan import LoadPlan

_BEAT_NS = 10_000_000
_BEATS_PER_SWEEP = 10
_BEATS_PER_REPORT = 25
_EARLY_NS = 2_000_000    # libuv's timers are a millisecond coarse: wake early, then poll until it is time
_AHEAD_NS = 60_000_000   # connections are opened so long before a timed request needs them
_WARM_LIMIT = 1024


class Replayer:
    """Runs a plan to its end, or until cancelled.

    Args:
        plan: what to send.
        address: IP address of plan.host.
        writer: takes every exchange as soon as it ended.
        report: takes a packed PROGRESS about four times a second.
    """

    def __init__(
        self, plan: LoadPlan, address: str, writer: RecordingWriter, report: Callable[[bytes], None]
    ) -> None:
        self._plan = plan
        self._writer = writer
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._client = Client(self._loop, plan, address, self._on_end)
        self._schedule = Schedule(plan)
        self._timer: asyncio.TimerHandle | None = None
        self._pumping = False
        self._landed: deque[Flight] = deque()
        self._over = asyncio.Event()
        self._departed = bytearray(len(plan.requests))
        self._failed = 0
        self._done = 0
        self._beats = 0
        self._lag = array("q")
        self._clock_gap_ns = 0
        self._started_ns = monotonic_ns()
        self._beat_due_ns = self._boot_due_ns = 0

    async def run(self) -> None:
        """Replay; returns when every request of the plan is recorded."""
        cpu_ns = time.process_time_ns()
        self._client.warm(min(self._plan.concurrency or 0, len(self._plan.requests), _WARM_LIMIT))
        await self._client.warmed(timeout_s=1.0)
        self._started_ns = monotonic_ns() + _AHEAD_NS
        self._schedule.start(self._started_ns)
        self._writer.start(self._started_ns)
        self._beat_due_ns, self._boot_due_ns = monotonic_ns(), _boottime_ns()
        self._beat()
        if not self._schedule.done:
            self._pump_soon()
            await self._over.wait()
        while self._landed:
            self._record()
        self._client.cancel()  # closes what is idle
        self._note_lag()
        self._flush()
        self._writer.end(monotonic_ns(), self._clock_gap_ns, time.process_time_ns() - cpu_ns)

    def cancel(self) -> None:
        """Give up: what is in flight ends as CANCELLED, the rest was NOT_SENT."""
        if self._over.is_set():
            return
        self._over.set()
        self._client.cancel()
        now_ns = monotonic_ns()
        for request in self._plan.requests:
            if not self._departed[request.index]:
                intended_ns = self._started_ns + (request.at_ns or 0)
                empty: array[int] = array("q")
                self._writer.exchange(
                    Exchange(request.index, intended_ns, None, now_ns, Ending.NOT_SENT, empty, empty, b"")
                )

    def _on_end(self, flight: Flight) -> None:
        self._done += 1
        self._failed += flight.ending is not Ending.COMPLETE
        self._landed.append(flight)
        if self._over.is_set():
            return
        self._schedule.finished(flight.request.index, flight.ended_ns)
        if self._schedule.done:
            self._over.set()
            return
        self._pump_soon()
        if len(self._landed) == 1:
            self._loop.call_soon(self._record_next)

    def _record_next(self) -> None:
        """One at a time, with I/O between: a wave of ends must not hold up stamps and sends."""
        if self._landed:
            self._record()
        if self._landed:
            self._loop.call_soon(self._record_next)

    def _record(self) -> None:
        self._writer.exchange(self._landed.popleft().exchange())

    def _pump_soon(self) -> None:
        """Pump after the reads that are already waiting: their stamps come first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._over.is_set():
            return
        for departure in self._schedule.depart(monotonic_ns()):
            self._departed[departure.request.index] = True
            self._client.send(departure.request, departure.intended_ns)
        due_ns = self._schedule.next_due_ns
        if due_ns is None:
            return
        wait_ns = due_ns - monotonic_ns() - _EARLY_NS
        if wait_ns > 0:
            self._timer = self._loop.call_later(wait_ns / 1e9, self._pump_soon)
        else:
            self._pump_soon()

    def _note_lag(self) -> int:
        """Record how late this beat is, expect the next one; the time of this one."""
        now_ns, boot_ns = monotonic_ns(), _boottime_ns()
        self._lag.append(max(0, now_ns - self._beat_due_ns))
        self._clock_gap_ns = max(self._clock_gap_ns, boot_ns - self._boot_due_ns)
        # Counted from the start of this beat: a pause in the midst of it must show in the next.
        self._beat_due_ns, self._boot_due_ns = now_ns + _BEAT_NS, boot_ns + _BEAT_NS
        return now_ns

    def _beat(self) -> None:
        now_ns = self._note_lag()
        if self._over.is_set():
            return
        self._client.sweep(now_ns, self._beats % _BEATS_PER_SWEEP, _BEATS_PER_SWEEP)
        self._client.warm(min(self._schedule.upcoming(now_ns + _AHEAD_NS), _WARM_LIMIT))
        self._beats += 1
        if self._beats % _BEATS_PER_REPORT == 0:
            self._flush()
        self._loop.call_later(max(0, self._beat_due_ns - monotonic_ns()) / 1e9, self._beat)

    def _flush(self) -> None:
        self._writer.lag(self._lag)
        self._lag = array("q")
        elapsed_ns = max(0, monotonic_ns() - self._started_ns)
        self._report(PROGRESS.pack(self._client.sent, self._done, self._failed, elapsed_ns))


def _boottime_ns() -> int:
    """Goes on while the machine is suspended, which CLOCK_MONOTONIC does not."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
