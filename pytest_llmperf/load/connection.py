"""One connection: stamps every read first thing, and otherwise only looks for the end of the message."""

from __future__ import annotations

import socket
from time import monotonic_ns
from typing import Protocol

from pytest_llmperf.load.arrivals import ANCILLARY_BYTES, ReadStamps, ask_for_stamps
from pytest_llmperf.load.connection_setup import Opening, Route, Tls
from pytest_llmperf.load.reactor import READ, WRITE, Reactor
from pytest_llmperf.load.request_in_flight import RequestInFlight
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.wire.http import NotHttpError

_EMPTY_LINE = b"\r\n\r\n"
_ROOM = 1 << 16


class Owner(Protocol):
    """The client that holds the connections."""

    def opened(self, connection: Connection) -> None:
        """The connection can take a request."""
        ...

    def took(self, request: RequestInFlight, size: int) -> None:
        """Count the bytes of a read. The owner finishes a request whose answer exceeds a limit."""
        ...

    def finish(self, request: RequestInFlight, ending: Ending, error: str | None = None) -> None:
        """End a request; further calls for the same request do nothing."""
        ...

    def forget(self, connection: Connection) -> None:
        """The connection is closed, or was never opened."""
        ...


class Connection:
    """One TCP connection, with or without TLS. A connection serves one request at a time.

    Attributes:
        request: request that the connection serves, or that waits for the connection to open; None while idle.
        begun_ns: time at which the connection was requested.
        served: number of requests that used the connection.
        usable: whether the connection is open.
    """

    def __init__(self, watcher: Reactor, arrivals: ReadStamps, owner: Owner, route: Route) -> None:
        self._watcher = watcher
        self._arrivals = arrivals
        self._owner = owner
        self._unsent = b""
        self._closed = False
        self.request: RequestInFlight | None = None
        self.begun_ns = monotonic_ns()
        self.served = 0
        self.idle_since_ns = 0
        self.usable = False
        self._socket = socket.socket(route.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask_for_stamps(self._socket)
        self._fd = self._socket.fileno()
        self._recvmsg = self._socket.recvmsg
        self._opening = Opening(self._socket, route)
        self._tls = self._opening.tls
        self._opening.begin()
        watcher.watch(self._fd, self._open, READ | WRITE)

    @property
    def reusable(self) -> bool:
        """Open, and nothing of an earlier request left to send (a server may answer before it read all)."""
        return self.usable and not self._unsent

    def send(self, request: RequestInFlight, payload: bytes) -> None:
        """Hand a request to the kernel now; what does not fit follows as soon as there is room."""
        self.request = request
        request.reused = self.served > 0
        self.served += 1
        self._write(payload if self._tls is None else self._tls.encrypt(payload))
        request.sent_ns = monotonic_ns()

    def close(self) -> None:
        """Close the connection at once. The caller must end the request in flight, if there is one."""
        if self._closed:
            return
        self._closed, self.usable = True, False
        self._watcher.forget(self._fd)
        self._socket.close()
        self._owner.forget(self)

    def look_for_end(self, request: RequestInFlight) -> None:
        """Finish the request if the reads so far end the message."""
        try:
            if request.find_end():
                self._owner.finish(request, Ending.COMPLETE)
        except NotHttpError as problem:
            self._owner.finish(request, Ending.CLOSED_EARLY, f"not HTTP: {problem}")

    def _open(self) -> None:
        """A step of the opening: TCP, the proxy's tunnel, TLS."""
        try:
            if not self._opening.step():
                self._watcher.watch(self._fd, self._open, READ if self._opening.connected else READ | WRITE)
                return
        except OSError as problem:
            request = self.request
            self.close()
            if request is not None:
                self._owner.finish(request, Ending.CONNECT_FAILED, str(problem))
            return
        self.usable = True
        self._watcher.watch(self._fd, self._ready)
        self._owner.opened(self)

    def _ready(self) -> None:
        try:
            data, ancillary, _, _ = self._recvmsg(_ROOM, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as problem:
            self._lost(problem)
            return
        if not data:
            self._lost(None)
            return
        request = self.request
        if request is None:
            self._unasked(data)
            return
        stamps = request.stamps
        stamp_ns = self._arrivals.stamp(ancillary, stamps[-1] if stamps else request.released_ns)
        if self._tls is not None:
            self._take_encrypted(self._tls, request, stamp_ns, data)
            return
        stamps.append(stamp_ns)
        request.reads.append(data)
        self._owner.took(request, len(data))
        # The end of a chunked stream is an empty line behind text, trailers included. The chunk of an event that ends
        # so itself ends with two of them, so a running stream is hardly ever looked at. A shorter read shows no end.
        if not request.chunked or (data.endswith(_EMPTY_LINE) and data[-5:-4] != b"\n") or len(data) < 5:
            self.look_for_end(request)

    def _take_encrypted(self, tls: Tls, request: RequestInFlight, stamp_ns: int, data: bytes) -> None:
        """Decrypt a read. The decrypted bytes have the stamp of the read that completed their TLS record."""
        try:
            plain = tls.decrypt(data)
        except OSError as problem:
            self._lost(problem)
            return
        if plain:
            request.stamps.append(stamp_ns)
            request.reads.append(plain)
            self._owner.took(request, len(plain))
            self.look_for_end(request)
        if tls.closed:
            self._lost(None)

    def _unasked(self, data: bytes) -> None:
        """Handle bytes without a request in flight. TLS session tickets are expected; other bytes close the connection,
        because no request could own them."""
        try:
            if self._tls is not None and not self._tls.decrypt(data) and not self._tls.closed:
                return
        except OSError:
            pass
        self.close()

    def _write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            written = self._socket.send(data)
        except BlockingIOError:
            written = 0
        except OSError:  # broken: the next read reports the error
            return
        if written < len(data):
            self._unsent = data[written:]
            self._watcher.watch(self._fd, self._write_on, READ | WRITE)

    def _write_on(self) -> None:
        data, self._unsent = self._unsent, b""
        self._watcher.watch(self._fd, self._ready)
        self._write(data)
        self._ready()

    def _lost(self, problem: OSError | None) -> None:
        request = self.request
        self.close()
        if request is not None:
            self.look_for_end(request)
            self._owner.finish(request, _ending_of(request, problem), str(problem) if problem else None)


def _ending_of(request: RequestInFlight, problem: OSError | None) -> Ending:
    if not request.reads and request.reused:
        return Ending.STALE
    if problem is not None:
        return Ending.RESET
    return Ending.COMPLETE if request.until_close else Ending.CLOSED_EARLY
