"""Requests in real time: their order at the engine, and the answers to requests that the engine cannot serve."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pytest_llmperf.emulator.cluster.deployment import Deployment
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.cost.step_time import StepLoad
from pytest_llmperf.emulator.faults import Faults
from pytest_llmperf.emulator.flags.launch import Launch, machine
from pytest_llmperf.emulator.flags.sglang import sglang_launch
from pytest_llmperf.emulator.flags.vllm import vllm_launch
from pytest_llmperf.emulator.http.answers import events_of
from pytest_llmperf.emulator.http.app import App
from pytest_llmperf.emulator.http.realtime import RealTime
from pytest_llmperf.emulator.http.service import Service
from pytest_llmperf.emulator.http.streams import Stream


class Instant:
    """1 µs a step."""

    def seconds(self, load: StepLoad) -> float:
        return 1e-6

    def ingress_s(self, prompt_tokens: int) -> float:
        return 0.0


def service(launch: Launch) -> Service:
    return Service(launch, Deployment(launch.config, Instant()), Faults(), 0, 0)


def completion(**fields: object) -> bytes:
    return json.dumps({"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True, **fields}).encode()


async def posted(app: App, body: bytes, path: str = "/v1/completions", query: bytes = b"") -> tuple[int, bytes]:
    """Status and body of the answer to a POST."""
    sent: list[Any] = []
    messages = [{"type": "http.request", "body": body}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Future()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": query, "headers": []}
    await asyncio.wait_for(app(scope, receive, send), 10)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


@asynccontextmanager
async def running(server: Service) -> AsyncIterator[App]:
    """The server in real time."""
    realtime = RealTime(server)
    engine = asyncio.ensure_future(realtime.run())
    try:
        yield App(server, realtime)
    finally:
        engine.cancel()


async def answer(server: Service, body: bytes, path: str = "/v1/completions", query: bytes = b"") -> tuple[int, bytes]:
    """Status and body of what is posted, by default a request for a completion."""
    async with running(server) as app:
        return await posted(app, body, path, query)


def test_requests_on_the_way_keep_order_if_client_disconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    server = service(vllm_launch(["serve", "tiny"], machine("h200", 1), {}))
    submitted: list[int] = []

    def submit(sequence: Sequence, now_ns: int) -> None:
        del sequence
        submitted.append(now_ns)

    monkeypatch.setattr(server.deployment, "submit", submit)

    async def arrivals() -> None:
        realtime = RealTime(server)
        ask = server.ask("/v1/completions", completion())
        due = [1, 5, 2, 6, 7, 3, 4]  # a heap; without its first entry it is none
        streams = [Stream(ask, at, None, received_ns=0, arrived_ns=at, events=events_of(ask, server.launch, at, 0))
                   for at in due]
        for stream in streams:
            realtime.arrive(stream)
        realtime.leave(streams[0])
        running = asyncio.ensure_future(realtime.run())
        limit_s = time.monotonic() + 5
        while len(submitted) < len(due) - 1 and time.monotonic() < limit_s:
            await asyncio.sleep(0.001)
        running.cancel()

    asyncio.run(arrivals())
    assert submitted == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("stream", [False, True])
def test_request_that_engine_cannot_serve_is_refused_with_reason(stream: bool) -> None:
    server = service(sglang_launch(["--model-path", "tiny", "--max-total-tokens", "64"], machine("h200", 1), {}))
    assert asyncio.run(answer(server, completion(stream=stream)))[0] == 200
    status, body = asyncio.run(answer(server, completion(prompt=[1] * 200, stream=stream)))
    assert status == (200 if stream else 400)  # a stream has begun by then
    assert b"more than the 62 tokens" in body


def test_the_query_says_which_tier_is_emptied() -> None:
    """In virtual time the query is part of the path; a web server passes the query separately."""
    server = service(vllm_launch(["serve", "tiny", "--kv-offloading-size", "1"], machine("h200", 1), {}))
    for query, status in ((b"tier=l1", 200), (b"tier=l9", 400), (b"", 400)):
        assert asyncio.run(answer(server, b"", "/lmcache/cache/clear", query))[0] == status
    assert asyncio.run(answer(server, b"", "/reset_prefix_cache", b"reset_external=true"))[0] == 200


def test_request_to_sleeping_server_is_answered_after_wake_up() -> None:
    async def woken() -> tuple[int, bytes]:
        server = service(vllm_launch(["serve", "tiny", "--enable-sleep-mode"], machine("h200", 1), {}))
        async with running(server) as app:
            await posted(app, b"", "/sleep")
            held = asyncio.ensure_future(posted(app, completion()))
            await asyncio.sleep(0.05)
            assert not held.done()
            await posted(app, b"", "/wake_up")
            return await held

    status, content = asyncio.run(woken())
    assert status == 200
    assert json.loads(content)["usage"]["completion_tokens"] == 4


def test_running_request_is_aborted_by_sleep() -> None:
    async def aborted() -> tuple[int, bytes]:
        server = service(vllm_launch(["serve", "tiny", "--enable-sleep-mode"], machine("h200", 1), {}))
        async with running(server) as app:
            request = asyncio.ensure_future(posted(app, completion(max_tokens=20_000)))
            while not any(engine.gauges.running for engine in server.deployment.engines):
                await asyncio.sleep(0)
            await posted(app, b"", "/sleep")
            return await request

    status, content = asyncio.run(aborted())
    assert status == 400
    assert b"went to sleep" in content
