"""Scripts through the real load process to request records: sockets, framing and parsing included."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.exchange import Replay
from pytest_llmperf.model.plan import Channel, LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.model.record import RequestRecord
from pytest_llmperf.model.request import Cancellation, Request, RetryPolicy
from pytest_llmperf.session.replay import records_of
from pytest_llmperf.testing.scripted_server import ScriptedServer


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay against scripts, and its records."""

    replay: Replay
    records: tuple[RequestRecord, ...]

    @property
    def record(self) -> RequestRecord:
        """The first one."""
        return self.records[0]


def replay_scripts(
    server: ScriptedServer,
    *,
    requests: int = 1,
    output_tokens: int = 4,
    prompt_tokens: int = 8,
    at_ns: tuple[int, ...] | None = None,
    concurrency: int | None = 1,
    limits: StreamLimits | None = None,
    retry_stale: bool = False,
    host: str = "127.0.0.1",
    channel: Channel | None = None,
    processes: int = 1,
    cancellation: Cancellation | None = None,
    retry: RetryPolicy | None = None,
) -> Replayed:
    """Send `requests` equal requests to a running scripted server: at the given times, else in a closed loop."""
    plan = LoadPlan(
        host=host,
        port=server.port,
        requests=tuple(
            PlannedRequest(index, "/v1/completions", b"{}", at_ns=None if at_ns is None else at_ns[index],
                           cancellation=cancellation, retry=retry)
            for index in range(requests)
        ),
        concurrency=concurrency if at_ns is None else None,
        limits=limits or StreamLimits(),
        channel=channel or Channel(),
        retry_stale=retry_stale,
    )
    replay = ProcessTransport(processes=processes).replay(plan, cancel=threading.Event())
    request = Request(0, (1,) * prompt_tokens, output_tokens, prompt_tokens)
    return Replayed(replay, records_of(tuple(replace(request, index=index) for index in range(requests)), replay))
