"""Replay a workload once: plan, send, read, count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from pytest_llmperf.engines.server import Server
from pytest_llmperf.load.transport import Progress, Transport
from pytest_llmperf.metrics import percentile
from pytest_llmperf.model.exchange import Replay
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.model.record import RequestRecord
from pytest_llmperf.model.request import Request
from pytest_llmperf.session.measurement import Run
from pytest_llmperf.telemetry.prometheus import deltas, restarted
from pytest_llmperf.wire.completions import to_record
from pytest_llmperf.workload import Workload

DEATH_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Replayer:
    """Replays workloads against servers.

    Args:
        transport: what sends.
        now: the wall clock, for labels.
        gauge_interval_s: how often gauges are sampled for their peak; None: never.
        progress: called about four times a second during a run.
    """

    transport: Transport
    now: Callable[[], datetime]
    gauge_interval_s: float | None = None
    progress: Callable[[Progress], None] | None = None

    def run(self, server: Server, workload: Workload, seed: int) -> Run:
        """One run, the cache emptied before it.

        Raises:
            ServerDied: the server ended before the last answer.
            LoadError: the load generator failed.
        """
        requests = workload.requests(seed)
        cache_reset = server.reset_cache()
        started_at = self.now().isoformat(timespec="seconds")
        before = server.counters()
        peaks: dict[str, float] = {}
        with self._sampling(server, peaks):
            replay = self.replay(server, requests, workload.concurrency)
        records = records_of(requests, replay)
        served = sum(record.ok for record in records)
        after = server.wait_idle(before.get("requests_finished", 0.0), served)
        server.check_alive()
        lag = percentile(sorted(lag_ns / 1e6 for lag_ns in replay.loop_lag_ns), 0.99) if replay.loop_lag_ns else None
        return Run(
            seed=seed,
            start_id=server.start_id,
            records=records,
            counters=deltas(before, after) | peaks | _constants(server),
            cache_reset=cache_reset,
            restarted=restarted(before, after),
            loop_lag_p99_ms=lag,
            clock_gap_ms=replay.clock_gap_ns / 1e6,
            started_at=started_at,
        )

    def replay(self, server: Server, requests: tuple[Request, ...], concurrency: int | None) -> Replay:
        """Send the requests and read the answers; given up within a second of the server's death."""
        host, port = server.address
        plan = LoadPlan(host, port, tuple(_planned(server, request) for request in requests), concurrency=concurrency)
        cancel = threading.Event()
        with _cancelled_on_death(server, cancel):
            replay = self.transport.replay(plan, cancel=cancel, progress=self.progress)
        server.check_alive()
        return replay

    @contextmanager
    def _sampling(self, server: Server, peaks: dict[str, float]) -> Iterator[None]:
        """Peaks of gauges while the block runs. """
        interval_s = self.gauge_interval_s
        if interval_s is None:
            yield
            return
        done = threading.Event()

        def sample() -> None:
            while not done.wait(interval_s):
                for name, value in server.gauges().items():
                    peaks[name] = max(value, peaks.get(name, value))

        thread = threading.Thread(target=sample, daemon=True, name="llmperf-gauges")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def records_of(requests: tuple[Request, ...], replay: Replay) -> tuple[RequestRecord, ...]:
    """What each request did, read from the bytes that came."""
    return tuple(to_record(request, exchange) for request, exchange in zip(requests, replay.exchanges, strict=True))


def _constants(server: Server) -> dict[str, float]:
    """Resolved settings that a mechanism may name."""
    budget = server.facts.get("max_num_batched_tokens", "")
    return {"chunk_budget": float(budget)} if budget.isdigit() else {}


def _planned(server: Server, request: Request) -> PlannedRequest:
    path, body = server.post(request)
    return PlannedRequest(request.index, path, body, request.at_ns, request.after, request.think_ns)



@contextmanager
def _cancelled_on_death(server: Server, cancel: threading.Event) -> Iterator[None]:
    """Set `cancel` as soon as the server's process ends."""
    process = server.process
    if process is None:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            if process.wait_exit(DEATH_POLL_S):
                cancel.set()
                return

    thread = threading.Thread(target=watch, daemon=True, name="llmperf-death-watch")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
