"""Our load generator, and httpx, against the server of known timing."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from itertools import pairwise

import httpx
from figures import Measured, quantile
from timed import TimedServer

from pytest_llmperf.load.cores import Cores
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.model.request import Request
from pytest_llmperf.wire.completions import to_record

TOKENS = 100
FIELDS = {"model": "timed", "max_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True}}
BODY = json.dumps(FIELDS | {"prompt": "x"}).encode()
PATH = "/v1/completions"
CHAT_BODY = json.dumps(FIELDS | {"messages": [{"role": "user", "content": "x"}]}).encode()
CHAT_PATH = "/v1/chat/completions"
SECONDS_A_STREAM = 1.04


def closed(server: TimedServer, streams: int, requests: int, *, chat: bool = False) -> Measured:
    """So many streams at a time, of completions or of chat completions."""
    path, body = (CHAT_PATH, CHAT_BODY) if chat else (PATH, BODY)
    planned = tuple(PlannedRequest(index, path, body) for index in range(requests))
    return _replayed(server, planned, streams)


def open_loop(server: TimedServer, streams: int, requests: int) -> Measured:
    """Poisson arrivals at a rate that keeps about so many streams running."""
    rng, at_s, planned = random.Random(streams), 0.0, []
    for index in range(requests):
        planned.append(PlannedRequest(index, PATH, BODY, at_ns=round(at_s * 1e9)))
        at_s += rng.expovariate(streams / SECONDS_A_STREAM)
    return _replayed(server, tuple(planned), None)


def _replayed(server: TimedServer, planned: tuple[PlannedRequest, ...], streams: int | None) -> Measured:
    cores = Cores(tuple(server.clients), (server.cpus[-1],), reserved=len(server.cpus) > 1)
    plan = LoadPlan("127.0.0.1", server.port, planned, concurrency=streams)
    replay = ProcessTransport(cores=cores).replay(plan, cancel=threading.Event())
    records = [to_record(Request(e.index, "x", TOKENS, None), e) for e in replay.exchanges]
    assert all(record.ok for record in records), next(r.detail for r in records if not r.ok)
    arrivals = [record.arrivals_ns for record in records]
    reads = sum(len(exchange.read_ns) for exchange in replay.exchanges)
    assert replay.load is not None
    return Measured(
        ttft_ms=[(record.arrivals_ns[0] - record.intended_ns) / 1e6 for record in records],
        itl_ms=[(after - previous) / 1e6 for times in arrivals for previous, after in pairwise(times)],
        late_ms=[((r.sent_ns or 0) - r.intended_ns) / 1e6 for r in records] if streams is None else (),
        notes={
            "events_per_s": TOKENS * len(records) / ((replay.ended_ns - replay.started_ns) / 1e9),
            "cpu_us_per_read": replay.cpu_ns / 1e3 / reads,
            "busy": replay.load.busy,
            "lag_p99_ms": quantile(replay.loop_lag_ns, 0.99) / 1e6,
            "read_delay_p99_ms": replay.load.read_delay_p99_ns / 1e6,
            "turnaround_p99_ms": (replay.load.turnaround_p99_ns or 0) / 1e6,
            "coalesced": sum(record.coalesced_chunks for record in records) / (TOKENS * len(records)),
            "memory_mib": replay.load.peak_memory_bytes / 2**20,
            "kernel_stamped": replay.load.kernel_stamped,
        },
    )


def plain_httpx(server: TimedServer, streams: int, requests: int) -> Measured:
    """One AsyncClient, stamps taken where `aiter_raw` yields."""
    cpu_s, cpus = time.process_time(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, server.clients)
    try:
        times_by_stream = asyncio.run(_ask(server, streams, requests))
    finally:
        os.sched_setaffinity(0, cpus)
    return Measured(
        ttft_ms=[times[0] for times in times_by_stream],
        itl_ms=[after - previous for times in times_by_stream for previous, after in pairwise(times)],
        notes={"cpu_us_per_read": (time.process_time() - cpu_s) * 1e6 / sum(map(len, times_by_stream))},
    )


async def _ask(server: TimedServer, streams: int, requests: int) -> list[list[float]]:
    """Times of content in ms after the send, for each request."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    left = iter(range(requests))
    arrivals: list[list[float]] = []

    async def stream(client: httpx.AsyncClient) -> None:
        for _ in left:
            sent_ns, times_ms = time.monotonic_ns(), []
            async with client.stream("POST", server.url + PATH, content=BODY) as response:
                async for piece in response.aiter_raw():
                    if b'"text"' in piece:
                        times_ms.append((time.monotonic_ns() - sent_ns) / 1e6)
            arrivals.append(times_ms)

    async with httpx.AsyncClient(trust_env=False, timeout=120, limits=limits) as client:
        await asyncio.gather(*(stream(client) for _ in range(streams)))
    return arrivals
