"""HTTP over asyncio: stamps every read first thing, and otherwise only looks for the end of the message."""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import cast

from pytest_llmperf.model.exchange import Ending, Exchange
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.wire.http import Framing, NotHttpError

_LAST_CHUNK = b"0\r\n\r\n"
_REUSE_NS = 3_000_000_000  # servers close idle connections from 5 s on: a request must not race with that


@dataclass(slots=True, eq=False)
class Flight:
    """One request from its departure to its end."""

    request: PlannedRequest
    intended_ns: int
    departed_ns: int
    sent_ns: int | None = None
    reused: bool = False
    retried: bool = False
    stamps: array[int] = field(default_factory=lambda: array("q"))
    reads: list[bytes] = field(default_factory=list)
    framing: Framing = field(default_factory=Framing)
    framed: int = 0
    size_bytes: int = 0
    sized: int = 0
    opening: asyncio.Task[None] | None = None
    connection: Connection | None = None
    ending: Ending = Ending.NOT_SENT
    ended_ns: int = 0
    error: str | None = None

    def overdue(self, now_ns: int, limits: StreamLimits) -> Ending | None:
        """Which limit it exceeds, if any."""
        if self.sent_ns is None:
            return Ending.CONNECT_TIMEOUT if now_ns - self.departed_ns > limits.connect_ns else None
        if now_ns - self.sent_ns > limits.total_ns:
            return Ending.TOTAL_TIMEOUT
        if not self.stamps:
            return Ending.FIRST_BYTE_TIMEOUT if now_ns - self.sent_ns > limits.first_byte_ns else None
        self.size_bytes += sum(map(len, self.reads[self.sized :]))
        self.sized = len(self.reads)
        if self.size_bytes > limits.response_bytes:
            return Ending.TOO_LARGE
        return Ending.IDLE_TIMEOUT if now_ns - self.stamps[-1] > limits.idle_ns else None

    def find_end(self) -> bool:
        """Whether the reads so far hold the whole message."""
        if self.framed == len(self.reads):
            return self.framing.complete
        fresh, self.framed = self.reads[self.framed :], len(self.reads)
        return self.framing.feed(b"".join(fresh))

    def exchange(self) -> Exchange:
        """All that is known of it."""
        sizes = array("q", map(len, self.reads))
        return Exchange(
            self.request.index, self.intended_ns, self.sent_ns, self.ended_ns, self.ending,
            self.stamps, sizes, b"".join(self.reads), self.reused, self.error,
        )


class Connection(asyncio.Protocol):
    """One TCP connection, serving one flight at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.flight: Flight | None = None
        self.served = 0
        self.idle_since_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._socket_fd: int = transport.get_extra_info("socket").fileno()

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
                self._client.finish(flight, Ending.COMPLETE)
        except NotHttpError as problem:
            self._client.finish(flight, Ending.CLOSED_EARLY, f"not HTTP: {problem}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.forget(self)
        flight = self.flight
        if flight is None:
            return
        self.look_for_end(flight)
        self._client.finish(flight, _ending_of(flight, exc), str(exc) if exc else None)


def _ending_of(flight: Flight, exc: Exception | None) -> Ending:
    if not flight.reads and flight.reused:
        return Ending.STALE
    if exc is not None:
        return Ending.RESET
    return Ending.COMPLETE if flight.framing.until_close else Ending.CLOSED_EARLY


class Client:
    """Connections and the requests in flight on them.

    Args:
        loop: the event loop that all of this runs in.
        plan: where to, with which headers and limits.
        address: IP address to connect to.
        on_end: called with each flight as soon as it ended.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, plan: LoadPlan, address: str, on_end: Callable[[Flight], None]
    ) -> None:
        self._loop = loop
        self._plan = plan
        self._address = address
        self._on_end = on_end
        self._payloads = [_payload(plan, request) for request in plan.requests]
        self._idle: list[Connection] = []
        self._warming: set[asyncio.Task[None]] = set()
        self._flights: dict[Flight, None] = {}
        self.sent = 0

    def send(self, request: PlannedRequest, intended_ns: int) -> None:
        """Send now on an open connection, else as soon as a new one is open."""
        flight = Flight(request, intended_ns, monotonic_ns())
        self._flights[flight] = None
        connection = self._take_idle(flight.departed_ns)
        if connection is None:
            flight.opening = self._loop.create_task(self._open_for(flight))
        else:
            self._write(connection, flight)

    def warm(self, connections: int) -> None:
        """Open connections ahead, so that at least so many are idle soon."""
        for _ in range(connections - len(self._idle) - len(self._warming)):
            task = self._loop.create_task(self._open_idle())
            self._warming.add(task)
            task.add_done_callback(self._warming.discard)

    async def warmed(self, timeout_s: float) -> None:
        """Wait until what `warm` began is open, or the time is over."""
        if self._warming:
            await asyncio.wait(self._warming, timeout=timeout_s)

    def sweep(self, now_ns: int, part: int, parts: int) -> None:
        """Check the limits of every `parts`-th flight, and look for ends that came in an unusual shape."""
        for flight in [f for f in self._flights if f.request.index % parts == part]:
            if flight.connection is not None and flight.framed < len(flight.reads):
                self._look_when_quiet(flight, now_ns)
            ending = flight.overdue(now_ns, self._plan.limits)
            if ending is not None:
                self.finish(flight, ending)

    def _look_when_quiet(self, flight: Flight, now_ns: int) -> None:
        # Trailers, or a last chunk split over reads: no further read will come to reveal it.
        quiet_ns = 100_000_000
        if now_ns - flight.stamps[-1] > quiet_ns and flight.connection is not None:
            flight.connection.look_for_end(flight)

    def cancel(self) -> None:
        """End every flight as CANCELLED, at once."""
        for flight in list(self._flights):
            self.finish(flight, Ending.CANCELLED)
        for task in list(self._warming):
            task.cancel()
        for connection in list(self._idle):
            connection.transport.abort()

    def finish(self, flight: Flight, ending: Ending, error: str | None = None) -> None:
        """A flight is over: hand it on, keep or close its connection. Later calls do nothing."""
        if flight not in self._flights:
            return
        if ending is Ending.STALE and self._plan.retry_stale and not flight.retried:
            self._retry(flight)
            return
        del self._flights[flight]
        now_ns = monotonic_ns()
        if flight.opening is not None:
            flight.opening.cancel()
        self._release(flight, ending, now_ns)
        flight.ending, flight.error = ending, error
        flight.ended_ns = flight.stamps[-1] if ending is Ending.COMPLETE else now_ns
        self._on_end(flight)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        if connection.flight is None and connection in self._idle:
            self._idle.remove(connection)

    def _release(self, flight: Flight, ending: Ending, now_ns: int) -> None:
        connection, flight.connection = flight.connection, None
        if connection is None:
            return
        connection.flight = None
        if ending is Ending.COMPLETE and flight.framing.keep_alive and not connection.transport.is_closing():
            connection.idle_since_ns = now_ns
            self._idle.append(connection)
        else:
            connection.transport.abort()

    def _retry(self, flight: Flight) -> None:
        flight.retried, flight.reused, flight.sent_ns = True, False, None
        flight.departed_ns = monotonic_ns()
        flight.connection = None
        flight.opening = self._loop.create_task(self._open_for(flight))

    def _take_idle(self, now_ns: int) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing() and now_ns - connection.idle_since_ns < _REUSE_NS:
                return connection
            connection.transport.abort()
        return None

    async def _connect(self) -> Connection:
        _, connection = await self._loop.create_connection(lambda: Connection(self), self._address, self._plan.port)
        return connection

    async def _open_for(self, flight: Flight) -> None:
        try:
            connection = await self._connect()
        except OSError as problem:
            flight.opening = None
            self.finish(flight, Ending.CONNECT_FAILED, str(problem))
            return
        flight.opening = None
        self._write(connection, flight)

    async def _open_idle(self) -> None:
        try:
            connection = await self._connect()
        except OSError:
            return  # the request that needs it will meet the same, and report it
        connection.idle_since_ns = monotonic_ns()
        self._idle.append(connection)

    def _write(self, connection: Connection, flight: Flight) -> None:
        connection.flight, flight.connection = flight, connection
        flight.reused = connection.served > 0
        connection.served += 1
        connection.write(self._payloads[flight.request.index])
        flight.sent_ns = monotonic_ns()
        self.sent += 1


def _payload(plan: LoadPlan, request: PlannedRequest) -> bytes:
    host = f"[{plan.host}]" if ":" in plan.host else plan.host
    lines = [
        f"POST {request.path} HTTP/1.1",
        f"Host: {host}:{plan.port}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        f"Content-Length: {len(request.body)}",
        *(f"{name}: {value}" for name, value in plan.headers),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + request.body
