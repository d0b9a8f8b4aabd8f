"""One request in real time, and the record of the times of its tokens."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.faults import HttpFault
from pytest_llmperf.emulator.http.answers import CRASHED, DONE, Events, error_event
from pytest_llmperf.emulator.http.generation_request import GenerationRequest
from pytest_llmperf.emulator.http.replies import Refusal
from pytest_llmperf.emulator.http.stream_writer import StreamWriter


class Stream:
    """Sends the tokens of a request's sequences, or collects them for an answer without streaming.

    Args:
        ask, number, fault: see service.py.
        received_ns, arrived_ns: time at which the request was read, and time of its arrival in the engine's queue.
        events: writer of the answer.
        outlet: where a stream goes; None for an answer without streaming.

    Attributes:
        sequences: what the engine runs, by prompt; empty before the arrival in its queue.
        intended_ns, sent_ns, counts: per emission.
        ended: the ending: complete, error, truncated, hang.
        refusal: why the engine can never serve the request; None if it can.
    """

    def __init__(
        self, ask: GenerationRequest, number: int, fault: HttpFault | None, *, received_ns: int, arrived_ns: int,
        events: Events, outlet: StreamWriter | None = None,
    ) -> None:  # fmt: skip
        self.ask = ask
        self.number = number
        self.received_ns = received_ns
        self.arrived_ns = arrived_ns
        self.sequences: list[Sequence] = []
        self.intended_ns: list[int] = []
        self.sent_ns: list[int] = []
        self.counts: list[int] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.refusal: Refusal | None = None
        self._fault = fault
        self._events = events
        self._outlet = outlet
        self._total = 0
        self._unfinished = len(ask.prompts)
        self._last_ns = [0] * len(ask.prompts)
        self._first_ns = [0] * len(ask.prompts)

    def emission(self, index: int, sequence: Sequence, count: int, intended_ns: int) -> tuple[int, int]:
        """Send the tokens of a step. Returns the intended times of the sequence's first and previous emission."""
        if self._cut(count):
            return self._first_ns[index], self._last_ns[index]
        if not self._total and self._outlet is not None:
            for event in self._events.opening():
                self._outlet.write(event)
        self._total += count
        if self._outlet is not None:
            ids = sequence.tokens(sequence.length - count, sequence.length)
            self._outlet.write(self._events.tokens(index, ids, sequence.cached_tokens or 0, sequence.finished))
        self.intended_ns.append(intended_ns)
        self.sent_ns.append(time.monotonic_ns())
        self.counts.append(count)
        previous_ns = self._last_ns[index]
        self._last_ns[index] = intended_ns
        self._first_ns[index] = self._first_ns[index] or intended_ns
        return self._first_ns[index], previous_ns

    def finish_one(self) -> None:
        """Counts a finished sequence of the request. After the last sequence the stream ends."""
        self._unfinished -= 1
        if self._unfinished or self.ended.done():
            return
        if self._outlet is not None:
            for event in self._events.end():
                self._outlet.write(event)
            self._outlet.write(b"", more=False)
        self.ended.set_result("complete")

    def refuse(self, refusal: Refusal) -> None:
        """The engine will never be able to serve it."""
        self.refusal = refusal
        self._fail(refusal)
        self.ended.set_result("error")

    def _cut(self, count: int) -> bool:
        """Whether a planted fault ends it before these tokens."""
        if self.ended.done():
            return True
        if self._fault is None or self._total + count <= self._fault.after_tokens:
            return False
        if self._fault.kind == "error":
            self._fail(CRASHED)
        self.ended.set_result(self._fault.kind)
        return True

    def _fail(self, error: Refusal) -> None:
        if self._outlet is None:
            return
        for piece in (error_event(error), DONE):
            self._outlet.write(piece)
        self._outlet.write(b"", more=False)


class Recorder:
    """Writes one JSON line per finished request; times are CLOCK_MONOTONIC nanoseconds.

    number, received_ns (the request's), arrived_ns (in the engine's queue), prompt_tokens, max_tokens, ending; and per
    emission: intended_ns (the end of its step), sent_ns (after it was written to the socket), counts (tokens).
    """

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - closed by close()

    def request(self, stream: Stream, ending: str) -> None:
        row = {
            "number": stream.number,
            "received_ns": stream.received_ns,
            "arrived_ns": stream.arrived_ns,
            "prompt_tokens": stream.ask.prompt_tokens,
            "max_tokens": stream.ask.max_tokens,
            "ending": ending,
            "intended_ns": stream.intended_ns,
            "sent_ns": stream.sent_ns,
            "counts": stream.counts,
        }
        self._file.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
