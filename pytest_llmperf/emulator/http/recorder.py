"""Each token's intended and actual send time, so that a client's error can be separated from the server's error."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_llmperf.emulator.http.streams import Stream


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
