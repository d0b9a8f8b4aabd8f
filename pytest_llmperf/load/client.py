"""Connections and the requests in flight on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from time import monotonic_ns

from pytest_llmperf.load.arrivals import ReadStamps
from pytest_llmperf.load.connection import Connection
from pytest_llmperf.load.connection_setup import Route, authority
from pytest_llmperf.load.reactor import Reactor
from pytest_llmperf.load.request_in_flight import Intake, RequestInFlight
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.wire.conversation import AnswerReader

_REUSE_NS = 3_000_000_000  # servers close idle connections from 5 s on: a request must not race with that
_QUIET_NS = 100_000_000
_PART, _MOST_PARTS = 100, 10  # requests that a sweep checks, and sweeps that check all
_LOST_NS = 100_000_000  # what opens at all opens sooner; a lost SYN is repeated after a second


class Client:
    """Sends requests. The client keeps connections alive, opens connections in advance and closes stale connections.

    Args:
        watcher: event loop of the connections.
        arrivals: stamps reads.
        plan: the headers, limits and channel of the requests.
        route: address of the connections.
        on_end: called with each request as soon as it ends.

    Attributes:
        intake: counts the bytes that were read from the server.
        unheard: requests with bytes that were read from the socket and not yet passed to the reader of the answer.
    """

    def __init__(
        self,
        watcher: Reactor,
        arrivals: ReadStamps,
        plan: LoadPlan,
        route: Route,
        on_end: Callable[[RequestInFlight], None],
    ) -> None:
        self._watcher = watcher
        self._arrivals = arrivals
        self._plan = plan
        self._route = route
        self._on_end = on_end
        self._payloads = {request.index: _payload(plan, request) for request in plan.requests}
        self._idle: list[Connection] = []
        self._warming: dict[Connection, None] = {}
        self._in_flight: dict[RequestInFlight, Connection] = {}
        self._waiting: dict[RequestInFlight, None] = {}  # for a connection to open, the longest first
        self.intake = Intake(plan.limits)
        self.unheard: deque[RequestInFlight] = deque()
        self.sent = 0

    def send(
        self, request: PlannedRequest, intended_ns: int, reader: AnswerReader | None = None
    ) -> RequestInFlight:
        """Send a request now on an idle connection, else on the next connection that opens."""
        in_flight = RequestInFlight(request, intended_ns, monotonic_ns(), reader=reader)
        self._send(in_flight)
        return in_flight

    def send_again(self, request: RequestInFlight, reader: AnswerReader | None) -> None:
        """Repeat a request that the server refused, on a connection chosen as in `send`."""
        self.intake.recorded(request)
        request.begin_again(monotonic_ns(), reader)
        self._send(request)

    def _send(self, request: RequestInFlight) -> None:
        connection = self._take_idle(request.released_ns)
        if connection is None:
            self._open_for(request)
        else:
            self._write(connection, request)

    def complete(self, request: PlannedRequest, body: bytes) -> None:
        """Set the body of a turn, once the answers that it contains are known."""
        self._payloads[request.index] = _payload(self._plan, replace(request, body=body))

    def warm(self, connections: int, times: int = 1) -> int:
        """Open connections in advance, so that after `times` calls `connections` connections are idle or opening.

        Returns the number of connections that later calls must open."""
        old_ns = monotonic_ns() - _REUSE_NS
        while self._idle and self._idle[0].idle_since_ns <= old_ns:
            self._idle.pop(0).close()
        missing = max(0, connections - len(self._idle) - len(self._warming))
        now = ceil(missing / times)
        for _ in range(now):
            self._warming[self._connect()] = None
        return missing - now

    @property
    def warming(self) -> bool:
        """Whether connections that `warm` began are not open yet."""
        return bool(self._warming)

    def sweep(self, now_ns: int, number: int) -> None:
        """Check the limits of the requests in flight, and look for message ends that a read has missed.

        Args:
            number: of this sweep. Of more than 100 requests a sweep checks a part, at least one in ten.
        """
        parts = min(_MOST_PARTS, 1 + len(self._in_flight) // _PART)
        for request in [r for r in self._in_flight if r.request.index % parts == number % parts]:
            # Bytes behind the end hide it, and no further read will come to reveal it.
            if request.stamps and now_ns - request.stamps[-1] > _QUIET_NS:
                self._in_flight[request].look_for_end(request)
            ending = request.overdue(now_ns, self._plan.limits)
            if ending is not None:
                self.finish(request, ending, self._plan.limits.reached(ending))

    def cancel(self) -> None:
        """End each request in flight as CANCELLED and close each connection."""
        for request in list(self._in_flight):
            self.finish(request, Ending.CANCELLED)
        for connection in [*self._warming, *self._idle]:
            connection.close()

    def opened(self, connection: Connection) -> None:
        """A new connection sends its own request, else the request that has waited longest.

        Without a waiting request the connection becomes idle."""
        self._warming.pop(connection, None)
        request = connection.request or self._swap()
        if request is not None:
            self._write(connection, request)
        else:
            connection.idle_since_ns = monotonic_ns()
            self._idle.append(connection)

    def took(self, request: RequestInFlight, size: int) -> None:
        """See `Owner.took`."""
        if request.reader is not None:
            self.unheard.append(request)
        exceeded = self.intake.take(request, size)
        if exceeded is not None:
            self.finish(request, Ending.TOO_LARGE, exceeded)
        elif request.reaches_cancellation():
            self.finish(request, Ending.ABANDONED)

    def finish(self, request: RequestInFlight, ending: Ending, error: str | None = None) -> None:
        """End a request in flight and keep or close the connection. A second call has no effect."""
        connection = self._in_flight.pop(request, None)
        if connection is None:
            return
        connection.request = None
        self._waiting.pop(request, None)
        if ending is Ending.STALE and self._plan.retry_stale:
            self._retry(request)
            return
        now_ns = monotonic_ns()
        if ending is Ending.COMPLETE and request.keep_alive and not self._plan.channel.fresh and connection.reusable:
            connection.idle_since_ns = now_ns
            self._idle.append(connection)
        else:
            connection.close()
        request.ending, request.error = ending, error
        request.ended_ns = request.stamps[-1] if ending is Ending.COMPLETE else now_ns
        self._on_end(request)

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection.

        If the server refuses connections, the next request that opens a connection reports the error."""
        self._warming.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)

    def _retry(self, request: RequestInFlight) -> None:
        """Send the request again on a new connection, which cannot be stale."""
        request.reused, request.sent_ns = False, None
        request.released_ns = monotonic_ns()
        self._open_for(request)

    def _open_for(self, request: RequestInFlight) -> None:
        """Assign the request to a young connection that was opened in advance, else to a new connection."""
        since_ns = monotonic_ns() - _LOST_NS
        young = (connection for connection in self._warming if connection.begun_ns > since_ns)
        connection = next(young, None) or self._connect()
        self._warming.pop(connection, None)
        self._in_flight[request] = connection
        self._waiting[request] = None
        connection.request = request

    def _swap(self) -> RequestInFlight | None:
        """The request that has waited longest for a connection. The connection that is opening for this request becomes
        a connection opened in advance."""
        request = next(iter(self._waiting), None)
        if request is not None:
            released = self._in_flight[request]
            released.request = None
            self._warming[released] = None
        return request

    def _take_idle(self, now_ns: int) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and now_ns - connection.idle_since_ns < _REUSE_NS:
                return connection
            connection.close()
        return None

    def _connect(self) -> Connection:
        return Connection(self._watcher, self._arrivals, self, self._route)

    def _write(self, connection: Connection, request: RequestInFlight) -> None:
        self._in_flight[request] = connection
        self._waiting.pop(request, None)
        self.sent += request.attempts == 1
        connection.send(request, self._payloads[request.request.index])


def _payload(plan: LoadPlan, request: PlannedRequest) -> bytes:
    host = authority(plan)
    forwarded = plan.channel.proxy is not None and not plan.channel.tls  # a plain proxy wants the whole URL
    lines = [
        f"POST {f'http://{host}' if forwarded else ''}{request.path} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        "Accept: text/event-stream, application/json",
        f"Content-Length: {len(request.body)}",
        *(("Connection: close",) if plan.channel.fresh else ()),
        *((f"X-Session-Id: {request.session}",) if request.session else ()),
        *(f"{name}: {value}" for name, value in plan.headers),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + request.body
