"""Where a stream's bytes go: ASGI's send, called from the engine's loop instead of from a task per request.

Waking a task per request and step costs a pass of the event loop each: at 20,000 tokens/s with 100 streams the last
token of a step left 6 ms late in the 99th percentile, and 2.5 ms late when the engine's loop sends them all itself
(measured with uvicorn, uvloop and httptools; a bare asyncio.Protocol: 1.7 ms). `send` only waits where the client does
not read; then a task takes over, and the engine's loop goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from typing import Any, cast

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


class StreamWriter:
    """Writes the body of one answer without waiting."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._backlog: deque[Message] | None = None
        self._drain: asyncio.Task[None] | None = None

    def write(self, body: bytes, more: bool = True) -> None:
        """Send a piece of the body now, or as soon as the client reads on."""
        message: Message = {"type": "http.response.body", "body": body, "more_body": more}
        if self._backlog is not None:
            self._backlog.append(message)
            return
        sending = cast("Coroutine[Any, None, None]", self._send(message))
        try:
            blocked_on = sending.send(None)
        except StopIteration:
            return
        self._backlog = deque()
        self._drain = asyncio.get_running_loop().create_task(self._drained(sending, blocked_on))

    async def flushed(self) -> None:
        """Wait until everything was handed to the socket."""
        if self._drain is not None:
            await self._drain

    def close(self) -> None:
        """Give up what is not sent yet."""
        if self._drain is not None:
            self._drain.cancel()

    async def _drained(self, sending: Coroutine[Any, None, None], blocked_on: object) -> None:
        await _Resumed(sending, blocked_on)
        while self._backlog:
            await self._send(self._backlog.popleft())
        self._backlog = None


class _Resumed:
    """Awaits a coroutine that has already run up to its first wait."""

    def __init__(self, begun: Coroutine[Any, None, None], blocked_on: object) -> None:
        self._begun = begun
        self._blocked_on = blocked_on

    def __await__(self) -> Generator[Any, Any, None]:
        waiting = self._blocked_on
        while True:
            value = yield waiting
            try:
                waiting = self._begun.send(value)
            except StopIteration:
                return
