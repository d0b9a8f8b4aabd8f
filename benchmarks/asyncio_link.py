"""A stamped connection inside an asyncio loop, for one request after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns

from pytest_llmperf.load.arrivals import ReadStamps
from pytest_llmperf.load.connection import Connection
from pytest_llmperf.load.connection_setup import Route
from pytest_llmperf.load.reactor import READ, WRITE
from pytest_llmperf.load.request_in_flight import RequestInFlight
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import PlannedRequest
from pytest_llmperf.wire.http import BodyFraming, NotHttpError


class AsyncioWatcher:
    """Descriptors of the running asyncio loop, as connections want them watched."""

    def __init__(self, arrivals: ReadStamps, after: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrivals = arrivals
        self._after = after

    def watch(self, fd: int, handler: Callable[[], None], events: int = READ) -> None:
        self._loop.add_reader(fd, self._run, handler)
        if events & WRITE:
            self._loop.add_writer(fd, self._run, handler)
        else:
            self._loop.remove_writer(fd)

    def forget(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)

    def _run(self, handler: Callable[[], None]) -> None:
        self._arrivals.polling()
        self._arrivals.synchronise()
        handler()
        self._after()


class Link:
    """Owns a `Connection`, with coroutines that wait for further bytes of the answer.

    Each coroutine raises OSError if the connection ends before the answer.

    Attributes:
        request: the current request, with its stamps.
        framing: framing of the answer.
    """

    def __init__(self, arrivals: ReadStamps, route: Route) -> None:
        self._changed = asyncio.Event()
        self._problem: OSError | None = None
        self._ended = False
        self._fed = 0
        self._given = 0
        self._renew()
        self._connection = Connection(AsyncioWatcher(arrivals, self._changed.set), arrivals, self, route)
        self._connection.request = self.request

    @property
    def reusable(self) -> bool:
        return self.framing.complete and self.framing.keep_alive and self._connection.reusable

    def renew(self) -> bool:
        """Take another request; False where the connection has closed meanwhile."""
        if not self._connection.reusable:
            return False
        self._renew()
        return True

    async def usable(self) -> None:
        await self._until(lambda: self._connection.usable)

    def send(self, payload: bytes) -> None:
        self._connection.send(self.request, payload)

    async def head(self) -> None:
        """Until `framing` knows status and headers."""
        await self._until(lambda: self.framing.status is not None)

    async def body(self) -> list[bytes]:
        """Further pieces of the body; none at its end."""
        await self._until(lambda: len(self.framing.pieces) > self._given or self._over)
        fresh = [piece for _, piece in self.framing.pieces[self._given :]]
        self._given += len(fresh)
        return fresh

    def close(self) -> None:
        self._connection.request = None
        self._connection.close()

    def opened(self, connection: Connection) -> None:
        """See `Owner.opened`; `usable` looks at the connection itself."""

    def took(self, request: RequestInFlight, size: int) -> None:
        """See `Owner.took`: whoever uses httpx sets limits of its own."""

    def finish(self, request: RequestInFlight, ending: Ending, error: str | None = None) -> None:
        """See `Owner.finish`."""
        if request is not self.request or self._ended:
            return
        self._ended = True
        self._connection.request = None
        if ending is Ending.CONNECT_FAILED:
            self._problem = ConnectionRefusedError(error)
        elif ending is not Ending.COMPLETE:
            self._problem = ConnectionError(error or ending.value)

    def forget(self, connection: Connection) -> None:
        """See `Owner.forget`: whoever waits looks at the connection itself."""

    @property
    def _over(self) -> bool:
        return self.framing.complete or (self._ended and self._problem is None)

    def _renew(self) -> None:
        self.request = RequestInFlight(PlannedRequest(0, "", b""), 0, monotonic_ns())
        self.framing = BodyFraming()
        self._ended, self._fed, self._given = False, 0, 0

    async def _until(self, ready: Callable[[], bool]) -> None:
        while True:
            self._changed.clear()
            self._take_reads()
            if ready():
                return
            if self._problem is not None:
                raise self._problem
            await self._changed.wait()

    def _take_reads(self) -> None:
        reads = self.request.reads
        try:
            while self._fed < len(reads) and not self.framing.complete:
                self._fed += 1
                self.framing.feed(reads[self._fed - 1])
        except NotHttpError as problem:
            raise ConnectionError(f"not HTTP: {problem}") from problem
