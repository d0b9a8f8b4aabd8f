"""httpx over the stamped path: `httpx.AsyncClient(transport=StampedTransport())`.

The transport combines httpx's interface with exact times. Every response carries `extensions["read_ns"]`: a stamp in
CLOCK_MONOTONIC nanoseconds for each read of the answer, made by the kernel if the kernel stamps. A late asyncio loop
does not change these stamps. The list grows while a streamed answer is read. The page
docs/evidence/load_generator.md compares the transport with a load process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
from asyncio_link import Link

from pytest_llmperf.load.arrivals import ReadStamps
from pytest_llmperf.load.connection_setup import Route, route_of
from pytest_llmperf.model.plan import Channel, LoadPlan

_Origin = tuple[str, int, bool]


class StampedTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1, one connection per request in flight, on the asyncio loop that runs (uvloop or not).

    Args:
        channel: certificates, proxy, reuse of connections; whether it is TLS follows from each URL.
    """

    def __init__(self, channel: Channel | None = None) -> None:
        self._channel = channel or Channel()
        self._arrivals = ReadStamps()
        self._idle: dict[_Origin, list[Link]] = {}
        self._routes: dict[_Origin, Route] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; returns once the head of its answer is there."""
        body = await request.aread()
        timeouts = request.extensions.get("timeout", {})
        origin = _origin(request.url)
        try:
            async with _limit(timeouts.get("connect"), httpx.ConnectTimeout, request):
                link = await self._link(origin)
        except OSError as problem:
            raise httpx.ConnectError(str(problem), request=request) from problem
        try:
            async with _limit(timeouts.get("connect"), httpx.ConnectTimeout, request):
                await link.usable()
            link.send(_head(request, len(body)) + body)
            async with _limit(timeouts.get("read"), httpx.ReadTimeout, request):
                await link.head()
        except BaseException as problem:
            link.close()
            raise _as_httpx(problem, request) from problem
        return httpx.Response(
            link.framing.status or 0,
            headers=link.framing.headers,
            stream=_Body(self, link, origin, request),
            extensions={"read_ns": link.request.stamps, "http_version": b"HTTP/1.1"},
        )

    async def aclose(self) -> None:
        """Close what is idle."""
        for links in self._idle.values():
            for link in list(links):
                link.close()
        self._idle.clear()
        self._arrivals.close()

    def release(self, link: Link, origin: _Origin) -> None:
        """Keep a connection whose answer is complete, close any other."""
        if link.reusable and not self._channel.fresh:
            self._idle.setdefault(origin, []).append(link)
        else:
            link.close()

    async def _link(self, origin: _Origin) -> Link:
        idle = self._idle.get(origin, [])
        while idle:
            link = idle.pop()
            if link.renew():
                return link
            link.close()
        host, port, tls = origin
        proxied = self._channel.proxy is not None and not tls
        if proxied:
            raise httpx.UnsupportedProtocol("a proxy is only supported for https here: it tunnels")
        if origin not in self._routes:
            plan = LoadPlan(host, port, (), channel=replace(self._channel, tls=tls))
            self._routes[origin] = await asyncio.to_thread(route_of, plan)  # the look-up of a name blocks
        return Link(self._arrivals, self._routes[origin])


class _Body(httpx.AsyncByteStream):
    """The body, piece by piece as it comes."""

    def __init__(self, transport: StampedTransport, link: Link, origin: _Origin, request: httpx.Request) -> None:
        self._transport = transport
        self._link = link
        self._origin = origin
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        timeout_s = self._request.extensions.get("timeout", {}).get("read")
        try:
            while True:
                async with _limit(timeout_s, httpx.ReadTimeout, self._request):
                    pieces = await self._link.body()
                if not pieces:
                    return
                for piece in pieces:
                    yield piece
        except OSError as problem:
            raise _as_httpx(problem, self._request) from problem

    async def aclose(self) -> None:
        self._transport.release(self._link, self._origin)


class _limit:  # noqa: N801 - reads as a function, like asyncio.timeout
    """asyncio.timeout with httpx's exceptions; None: no limit."""

    def __init__(self, seconds: float | None, kind: type[httpx.TimeoutException], request: httpx.Request) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._kind = kind
        self._request = request

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *raised: object) -> None:
        try:
            await self._timeout.__aexit__(*raised)  # type: ignore[arg-type]
        except TimeoutError as problem:
            raise self._kind("no answer in time", request=self._request) from problem


def _as_httpx(problem: BaseException, request: httpx.Request) -> BaseException:
    if isinstance(problem, ConnectionRefusedError):
        return httpx.ConnectError(str(problem), request=request)
    return httpx.ReadError(str(problem), request=request) if isinstance(problem, OSError) else problem


def _origin(url: httpx.URL) -> _Origin:
    return url.host, url.port or (443 if url.scheme == "https" else 80), url.scheme == "https"


def _head(request: httpx.Request, size: int) -> bytes:
    lines = [request.method.encode() + b" " + request.url.raw_path + b" HTTP/1.1"]
    lines += [
        name + b": " + value
        for name, value in request.headers.raw
        if name.lower() not in (b"content-length", b"transfer-encoding")
    ]
    lines.append(b"Content-Length: %d" % size)
    return b"\r\n".join(lines) + b"\r\n\r\n"
