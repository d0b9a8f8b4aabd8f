"""Runs against emulated engines without the bytes between: the emulator says when tokens came, and that is a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_llmperf.calibration.restarting import RestartedServer
from pytest_llmperf.engines.server import Server
from pytest_llmperf.model.exchange import Replay
from pytest_llmperf.model.record import Outcome, RequestRecord
from pytest_llmperf.model.request import Request
from pytest_llmperf.session.replay import Replayer
from pytest_llmperf.workload import Workload

#: (workload as text, seed) → its requests without their prompts.
Asked = dict[tuple[str, int], tuple[Request, ...]]


@dataclass(frozen=True, slots=True)
class Simulator(Replayer):
    """Replays workloads whose plans the engine's process keeps.

    Args:
        asked: what is remembered of workloads.
    """

    asked: Asked = field(default_factory=dict)

    def recorded(self, server: Server, workload: Workload, seed: int) -> tuple[tuple[RequestRecord, ...], Replay]:
        """The records of a run; its replay has no exchanges."""
        if not isinstance(server, RestartedServer):
            raise TypeError(f"{server} keeps no plans")
        key = str(workload), seed
        plan = f"{key[0]} with seed {seed}"
        if plan not in server.plans:
            requests = workload.requests(seed)
            server.engine.keep(plan, self.plan(server, requests, workload.concurrency))
            server.plans.add(plan)
            self.asked[key] = tuple(replace(request, prompt=()) for request in requests)
        engine = server.engine
        found = engine.simulate(plan)
        begun_ns = engine.begun_ns
        rows = zip(self.asked[key], found["records"], strict=True)
        records = tuple(_record(request, row, begun_ns) for request, row in rows)
        return records, Replay(begun_ns + found["started_ns"], begun_ns + found["ended_ns"], ())


def _record(request: Request, row: Mapping[str, Any], begun_ns: int) -> RequestRecord:
    outcome = Outcome(row["outcome"])
    return RequestRecord(
        index=request.index,
        intended_ns=begun_ns + row["intended_ns"],
        sent_ns=begun_ns + row["sent_ns"],
        ended_ns=begun_ns + row["ended_ns"],
        outcome=outcome,
        detail=None if outcome is Outcome.OK else outcome.value,
        arrivals_ns=tuple([begun_ns + at_ns for at_ns in row["token_ns"]]),
        chunk_tokens=tuple(row["token_counts"]),
        asked_prompt_tokens=request.prompt_tokens,
        asked_output_tokens=request.output_tokens,
        prompt_tokens=row["prompt_tokens"],
        output_tokens=row["output_tokens"],
        cached_tokens=row["cached_tokens"],
        tag=request.tag,
    )
