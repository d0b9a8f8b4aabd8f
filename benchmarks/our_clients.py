"""Our load generator against the server of known timing."""

from __future__ import annotations

import json
import random
import threading
from itertools import pairwise, repeat
from typing import Any

from figures import Measured, quantile
from timed import TimedServer

from pytest_llmperf.load.cores import Cores
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.model.request import Request
from pytest_llmperf.wire.completions import to_record

TOKENS = 100
FIELDS = {"model": "timed", "stream": True, "stream_options": {"include_usage": True}}
PROMPT = {"prompt": "x"}
PATH = "/v1/completions"
CHAT_PROMPT = {"messages": [{"role": "user", "content": "x"}]}
CHAT_PATH = "/v1/chat/completions"
SECONDS_A_STREAM = 1.04


def closed(server: TimedServer, streams: int, requests: int, *, chat: bool = False, tokens: int = TOKENS,
           port: int | None = None) -> Measured:
    """Measure a closed loop of `streams` completions or chat completions.

    Args:
        port: port of the server, or of a router before the server. The send error of the server is then subtracted
            from each arrival. None: port of the server, and nothing is subtracted.
    """
    path, prompt = (CHAT_PATH, CHAT_PROMPT) if chat else (PATH, PROMPT)
    planned = tuple(PlannedRequest(index, path, _body(prompt, tokens)) for index in range(requests))
    return _replayed(server, planned, streams, tokens, port)


def _body(prompt: dict[str, Any], tokens: int) -> bytes:
    return json.dumps(FIELDS | prompt | {"max_tokens": tokens}).encode()


def open_loop(server: TimedServer, streams: int, requests: int) -> Measured:
    """Poisson arrivals at a rate that keeps about so many streams running."""
    rng, at_s, planned, body = random.Random(streams), 0.0, [], _body(PROMPT, TOKENS)
    for index in range(requests):
        planned.append(PlannedRequest(index, PATH, body, at_ns=round(at_s * 1e9)))
        at_s += rng.expovariate(streams / SECONDS_A_STREAM)
    return _replayed(server, tuple(planned), None, TOKENS, None)


def _replayed(server: TimedServer, planned: tuple[PlannedRequest, ...], streams: int | None, tokens: int,
              port: int | None) -> Measured:
    cores = Cores(tuple(server.clients), (server.cpus[-1],), reserved=len(server.cpus) > 1)
    plan = LoadPlan("127.0.0.1", port or server.port, planned, concurrency=streams)
    replay = ProcessTransport(cores=cores).replay(plan, cancel=threading.Event())
    records = [to_record(Request(e.index, "x", tokens, None), e) for e in replay.exchanges]
    assert all(record.ok for record in records), next(r.detail for r in records if not r.ok)
    errors = {} if port is None else server.send_errors_ns()
    arrivals = [[at - error for at, error in zip(r.arrivals_ns, errors.get(r.answer_id or "", repeat(0)), strict=False)]
                for r in records]
    reads = sum(len(exchange.read_ns) for exchange in replay.exchanges)
    assert replay.load is not None
    return Measured(
        ttft_ms=[(times[0] - r.intended_ns) / 1e6 for times, r in zip(arrivals, records, strict=True)],
        itl_ms=[(after - previous) / 1e6 for times in arrivals for previous, after in pairwise(times)],
        late_ms=[((r.sent_ns or 0) - r.intended_ns) / 1e6 for r in records] if streams is None else (),
        notes={
            "events_per_s": tokens * len(records) / ((replay.ended_ns - replay.started_ns) / 1e9),
            "cpu_us_per_read": replay.cpu_ns / 1e3 / reads,
            "busy": replay.load.busy,
            "lag_p99_ms": quantile(replay.loop_lag_ns, 0.99) / 1e6,
            "read_delay_p99_ms": replay.load.read_delay_p99_ns / 1e6,
            "turnaround_p99_ms": (replay.load.turnaround_p99_ns or 0) / 1e6,
            "coalesced": sum(record.coalesced_chunks for record in records) / (tokens * len(records)),
            "memory_mib": replay.load.peak_memory_bytes / 2**20,
            "kernel_stamped": replay.load.kernel_stamped,
        },
    )
