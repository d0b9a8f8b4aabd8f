"""Connections and the requests in flight on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns

from pytest_llmperf.load.connection import Connection
from pytest_llmperf.load.flight import Flight
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest

_REUSE_NS = 3_000_000_000  # servers close idle connections from 5 s on: a request must not race with that
_QUIET_NS = 100_000_000


class Client:
    """Sends requests, on connections that it keeps alive, opens ahead and watches.

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
        self._flights: dict[Flight, Connection | None] = {}
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
            connection = self._flights[flight]
            # Trailers, or a last chunk split over reads: no further read will come to reveal it.
            if connection is not None and flight.stamps and now_ns - flight.stamps[-1] > _QUIET_NS:
                connection.look_for_end(flight)
            ending = flight.overdue(now_ns, self._plan.limits)
            if ending is not None:
                self.finish(flight, ending)

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
        if ending is Ending.STALE and self._plan.retry_stale:
            self._retry(flight)
            return
        connection = self._flights.pop(flight)
        now_ns = monotonic_ns()
        if flight.opening is not None:
            flight.opening.cancel()
        if connection is not None:
            self._release(connection, now_ns, keep=ending is Ending.COMPLETE and flight.framing.keep_alive)
        flight.ending, flight.error = ending, error
        flight.ended_ns = flight.stamps[-1] if ending is Ending.COMPLETE else now_ns
        self._on_end(flight)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        if connection.flight is None and connection in self._idle:
            self._idle.remove(connection)

    def _release(self, connection: Connection, now_ns: int, *, keep: bool) -> None:
        connection.flight = None
        if keep and connection.reusable:
            connection.idle_since_ns = now_ns
            self._idle.append(connection)
        else:
            connection.transport.abort()

    def _retry(self, flight: Flight) -> None:
        """On a new connection, so that it cannot turn out stale again."""
        flight.reused, flight.sent_ns = False, None
        flight.departed_ns = monotonic_ns()
        self._flights[flight] = None
        flight.opening = self._loop.create_task(self._open_for(flight))

    def _take_idle(self, now_ns: int) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and now_ns - connection.idle_since_ns < _REUSE_NS:
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
        if connection.transport.is_closing():  # its descriptor may already be somebody else's
            self.finish(flight, Ending.CONNECT_FAILED, "the server closed the connection as soon as it was open")
            return
        connection.flight, self._flights[flight] = flight, connection
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
