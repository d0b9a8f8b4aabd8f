"""One TCP connection: stamps every read first thing, and otherwise only looks for the end of the message."""

from __future__ import annotations

import asyncio
import os
from time import monotonic_ns
from typing import Protocol, cast

from pytest_llmperf.load.flight import Flight
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.wire.http import NotHttpError

_LAST_CHUNK = b"0\r\n\r\n"


class Owner(Protocol):
    """Whoever keeps the connections."""

    def finish(self, flight: Flight, ending: Ending, error: str | None = None) -> None:
        """The flight is over; calls after the first do nothing."""
        ...

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        ...


class Connection(asyncio.Protocol):
    """One TCP connection, serving one flight at a time."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.flight: Flight | None = None
        self.served = 0
        self.idle_since_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._socket_fd: int = transport.get_extra_info("socket").fileno()

    @property
    def reusable(self) -> bool:
        """Open, and nothing of an earlier request left to send (a server may answer before it read all)."""
        return not self.transport.is_closing() and self.transport.get_write_buffer_size() == 0

    def data_received(self, data: bytes) -> None:
        now_ns = monotonic_ns()
        flight = self.flight
        if flight is None:  # nobody asked
            self.transport.abort()
            return
        flight.stamps.append(now_ns)
        flight.reads.append(data)
        # A chunked stream is looked at only where a read ends like its last chunk, or is too short to tell.
        if not flight.framing.chunked or data.endswith(_LAST_CHUNK) or len(data) < len(_LAST_CHUNK):
            self.look_for_end(flight)

    def write(self, data: bytes) -> None:
        """Hand `data` to the kernel now: the transport itself would wait until every callback that is due has run."""
        try:
            written = os.write(self._socket_fd, data)
        except OSError:  # full, or broken: the transport finds out which
            written = 0
        if written < len(data):
            self.transport.write(data[written:])

    def look_for_end(self, flight: Flight) -> None:
        try:
            if flight.find_end():
                self._owner.finish(flight, Ending.COMPLETE)
        except NotHttpError as problem:
            self._owner.finish(flight, Ending.CLOSED_EARLY, f"not HTTP: {problem}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.forget(self)
        flight = self.flight
        if flight is None:
            return
        self.look_for_end(flight)
        self._owner.finish(flight, _ending_of(flight, exc), str(exc) if exc else None)


def _ending_of(flight: Flight, exc: Exception | None) -> Ending:
    if not flight.reads and flight.reused:
        return Ending.STALE
    if exc is not None:
        return Ending.RESET
    return Ending.COMPLETE if flight.framing.until_close else Ending.CLOSED_EARLY
