"""A real-socket server on 127.0.0.1 whose answers are scripts. It runs in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pytest_llmperf.testing.streams import Close, Hang, Reset, Script, Send


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came in.

    Args:
        head: request line and headers.
        body: as Content-Length says.
        connection: number of the connection, from 0, in order of acceptance.
    """

    head: bytes
    body: bytes
    connection: int


class ScriptedServer:
    """Answers the n-th request with the n-th script (the last one repeats), or with what a function says.

    A connection stays open after a script, for the next request, unless the script ends it. Use it as a
    context manager; `port` is known inside.
    """

    def __init__(
        self, *scripts: Script, answer: Callable[[int, Received], Script] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._scripts = scripts
        self._tls = tls
        self._answer = answer or self._by_position
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted-server", daemon=True)
        self._handlers: set[asyncio.Task[None]] = set()
        self.requests: list[Received] = []
        self.connections = 0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _by_position(self, number: int, _: Received) -> Script:
        return self._scripts[min(number, len(self._scripts) - 1)]

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for handler in list(self._handlers):
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = self._loop.create_task(self._converse(reader, writer, self.connections))
        self.connections += 1
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            try:
                if self._tls is not None:  # here, so that the end of the server waits for a refused handshake, too
                    await writer.start_tls(self._tls)
                while not writer.is_closing():
                    received = await _receive(reader, number)
                    self.requests.append(received)
                    await self._perform(self._answer(len(self.requests) - 1, received), reader, writer)
            finally:
                writer.close()

    async def _perform(self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for step in script:
            match step:
                case Send(data, delay_s):
                    await _pause(delay_s)
                    writer.write(data)
                    await writer.drain()
                case Close(delay_s):
                    await _pause(delay_s)
                    writer.close()
                    return
                case Reset(delay_s):
                    await _pause(delay_s)
                    _reset(writer)
                    return
                case Hang():
                    await reader.read(1)


async def _receive(reader: asyncio.StreamReader, number: int) -> Received:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            length = int(value)
    return Received(head, await reader.readexactly(length), number)


async def _pause(delay_s: float) -> None:
    if delay_s > 0:
        await asyncio.sleep(delay_s)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST: the linger time is zero."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
