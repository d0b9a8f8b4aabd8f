"""The deployment in real time: steps end when the model says, and their tokens leave then.

The order of events is that of virtual time: a step begins at the intended end of the one before it, however late that
was noticed, with the requests that had arrived by then; so delays never add up.
"""

from __future__ import annotations

import asyncio
import time
from heapq import heapify, heappop, heappush

from pytest_llmperf.emulator.core.engine import FastForward, Step
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.http.replies import Refusal
from pytest_llmperf.emulator.http.service import Service
from pytest_llmperf.emulator.http.streams import Stream


class RealTime:
    """Runs a service's deployment on CLOCK_MONOTONIC."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._deployment = service.deployment
        self._arrivals: list[tuple[int, int, Stream]] = []
        self._steps: list[tuple[int, int, Step | FastForward]] = []
        self._numbered = 0
        self._passed_ns = 0
        self._open: dict[Sequence, tuple[Stream, int]] = {}
        self._wake: asyncio.Future[None] | None = None
        self._held: list[Stream] = []  # requests to a sleeping server

    def arrive(self, stream: Stream) -> None:
        """Take a request; it reaches the queue at its `arrived_ns`, which moves on if that is history already. A
        sleeping server gets the request when it is awake."""
        if self._service.asleep:
            self._held.append(stream)
            return
        stream.arrived_ns = max(stream.arrived_ns, self._passed_ns + 1)
        heappush(self._arrivals, (stream.arrived_ns, stream.number, stream))
        self._interrupt()

    def leave(self, stream: Stream) -> None:
        """Drop a request in any state, after its client has disconnected."""
        self._held = [held for held in self._held if held is not stream]
        self._arrivals = [entry for entry in self._arrivals if entry[2] is not stream]
        heapify(self._arrivals)
        left = [sequence for sequence in stream.sequences if self._open.pop(sequence, None) is not None]
        self._service.drop(left)

    def follow_sleep(self) -> None:
        """Abort what runs on a server that has gone to sleep; let a server that is awake have the held requests."""
        if self._service.asleep:
            for stream in {owner for owner, _ in self._open.values()} | {entry[2] for entry in self._arrivals}:
                self.leave(stream)
                stream.refuse(Refusal(400, "The request was aborted: the server went to sleep."))
        else:
            held, self._held = self._held, []
            for stream in held:
                self.arrive(stream)

    async def run(self) -> None:
        """Processes the events of the engine when they are due, until the task is cancelled."""
        while True:
            due_ns = self._due_ns()
            if due_ns is None or due_ns > time.monotonic_ns():
                await self._until(due_ns)
            elif self._happen(due_ns):
                await asyncio.sleep(0)  # requests must be read even where every step is late

    def _due_ns(self) -> int | None:
        starts_ns = self._deployment.next_ns()
        times = [heap[0][0] for heap in (self._steps, self._arrivals) if heap]
        return min(times if starts_ns is None else [starts_ns, *times], default=None)

    def _happen(self, now_ns: int) -> bool:
        """Handles the earliest event that is due. Returns whether the loop should now yield to other tasks."""
        self._passed_ns = now_ns
        if self._steps and self._steps[0][0] <= now_ns:
            self._emit(heappop(self._steps)[2])
            return True
        if self._arrivals and self._arrivals[0][0] <= now_ns:
            self._submit(heappop(self._arrivals)[2])
            return False
        step = self._deployment.advance(now_ns + 1, fast_forwarding=False)
        if step is None:
            return True  # what is queued cannot run
        self._numbered += 1
        heappush(self._steps, (step.ended_ns, self._numbered, step))
        return False

    def _submit(self, stream: Stream) -> None:
        stream.sequences = self._service.sequences(stream.ask, stream.arrived_ns)
        self._open |= {sequence: (stream, index) for index, sequence in enumerate(stream.sequences)}
        refusal = self._service.submit(stream.sequences, stream.arrived_ns)
        if refusal is not None:
            stream.refuse(refusal)
            self.leave(stream)

    def _emit(self, step: Step | FastForward) -> None:
        if isinstance(step, FastForward):
            raise TypeError("real time does not leap")
        latencies = self._service.latencies
        for sequence, count in step.tokens:
            open_request = self._open.get(sequence)
            if open_request is None:
                continue  # its client has gone
            stream, index = open_request
            first_ns, previous_ns = stream.emission(index, sequence, count, step.ended_ns)
            if stream.ended.done():  # by a planted fault; a hanging request keeps running in the engine
                if stream.ended.result() != "hang":
                    self.leave(stream)
            elif previous_ns:
                latencies.gap(step.ended_ns - previous_ns, count)
            else:
                latencies.first_token(sequence, first_ns)
        for sequence in step.finished:
            open_request = self._open.pop(sequence, None)
            if open_request is not None:
                first_ns = sequence.first_token_ns or step.ended_ns
                self._service.finished(sequence, first_ns, step.ended_ns)
                open_request[0].finish_one()

    async def _until(self, due_ns: int | None) -> None:
        """Sleep until then, or until something arrives. uvloop's timers count milliseconds: the rest is passes of the
        loop, half a millisecond at most."""
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        timer = None
        if due_ns is not None:
            timer = loop.call_later((due_ns - time.monotonic_ns()) / 1e9, self._interrupt)
        await self._wake
        if timer is not None:
            timer.cancel()

    def _interrupt(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
