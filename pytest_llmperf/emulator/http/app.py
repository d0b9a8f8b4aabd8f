"""The ASGI application: bare, because its hot path is one send per token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import replace
from typing import Any

from pytest_llmperf.emulator.http.answers import CRASHED, REFUSALS, events_of
from pytest_llmperf.emulator.http.generation_request import GenerationRequest
from pytest_llmperf.emulator.http.realtime import RealTime
from pytest_llmperf.emulator.http.replies import EVENT_STREAM, Refusal, Reply, json_reply
from pytest_llmperf.emulator.http.service import Service
from pytest_llmperf.emulator.http.stream_writer import Send, StreamWriter
from pytest_llmperf.emulator.http.streams import Recorder, Stream

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_LARGEST_BODY = 64 * 2**20


class App:
    """Answers HTTP requests from a service that runs in real time."""

    def __init__(self, service: Service, realtime: RealTime, recorder: Recorder | None = None) -> None:
        self._service = service
        self._realtime = realtime
        self._recorder = recorder

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        received_ns = time.monotonic_ns()
        method, path = scope["method"], scope["path"]
        try:
            body = await _body(receive)
            if body is None:
                return
            if self._service.generates(method, path):
                session = dict(scope["headers"]).get(b"x-session-id", b"").decode("latin-1")
                generation = replace(self._service.ask(path, body), session=session)
                await self._generate(generation, received_ns, receive, send)
            else:
                query = scope.get("query_string", b"").decode("latin-1")
                reply = self._service.reply(method, f"{path}?{query}" if query else path)
                self._realtime.follow_sleep()
                await _send_reply(send, reply)
        except Refusal as refusal:
            await _send_reply(send, refusal.reply())

    async def _generate(self, generation: GenerationRequest, received_ns: int, receive: Receive, send: Send) -> None:
        service = self._service
        number = service.number()
        fault = service.fault_of(number, generation.max_tokens)
        if fault is not None and fault.kind in REFUSALS:
            raise REFUSALS[fault.kind]
        arrived_ns = received_ns + service.deployment.ingress_ns(generation.prompt_tokens)
        outlet = StreamWriter(send) if generation.stream else None
        events = events_of(generation, service.launch, number, int(service.unix_s(received_ns)))
        stream = Stream(
            generation, number, fault, received_ns=received_ns, arrived_ns=arrived_ns, events=events, outlet=outlet
        )
        if outlet is not None:
            await send(_start(200, EVENT_STREAM))
        self._realtime.arrive(stream)
        ending = await self._ended(stream, receive)
        if self._recorder is not None:
            self._recorder.request(stream, ending)
        if outlet is not None:
            await outlet.flushed() if ending in ("complete", "error") else outlet.close()
        elif ending == "complete":
            await _send_reply(send, json_reply(events.whole_of(stream.sequences)))
        elif ending != "gone":
            raise stream.refusal or CRASHED

    async def _ended(self, stream: Stream, receive: Receive) -> str:
        """How it ended; "gone" where the client closed the connection, which aborts it."""
        disconnected = asyncio.ensure_future(receive())
        either: set[asyncio.Future[Any]] = {stream.ended, disconnected}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not stream.ended.done():
                return "gone"
            if stream.ended.result() == "hang":
                await disconnected
            return stream.ended.result()
        finally:
            disconnected.cancel()
            if not stream.ended.done() or stream.ended.result() != "complete":
                self._realtime.leave(stream)


async def _body(receive: Receive) -> bytes | None:
    """The request's body; None if the client closed the connection before the end of the body.

    Raises:
        Refusal: the body is too large.
    """
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += bytes(message.get("body", b""))
        if len(body) > _LARGEST_BODY:
            raise Refusal(413, f"The body is larger than {_LARGEST_BODY} bytes.")
        if not message.get("more_body"):
            return body


def _start(status: int, content_type: str, length: int | None = None) -> dict[str, Any]:
    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    headers.append((b"content-type", content_type.encode()))
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _send_reply(send: Send, reply: Reply) -> None:
    await send(_start(reply.status, reply.content_type, len(reply.body)))
    await send({"type": "http.response.body", "body": reply.body})
