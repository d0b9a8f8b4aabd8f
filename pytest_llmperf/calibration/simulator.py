"""Runs against emulated engines that receive each plan once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pytest_llmperf.calibration.restarted_engines import RestartedServer
from pytest_llmperf.engines.server import Server
from pytest_llmperf.model.exchange import Replay
from pytest_llmperf.model.record import RequestRecord
from pytest_llmperf.model.request import Request
from pytest_llmperf.session.replay import Replayer, records_of
from pytest_llmperf.workload import Workload

#: (workload as text, seed) → its requests without their prompts.
PlannedRequests = dict[tuple[str, int], tuple[Request, ...]]


@dataclass(frozen=True, slots=True)
class Simulator(Replayer):
    """Replays workloads whose plans the engine's process keeps.

    Args:
        planned_requests: requests of each workload and seed that an engine's process keeps.
    """

    planned_requests: PlannedRequests = field(default_factory=dict)

    def recorded(self, server: Server, workload: Workload, seed: int) -> tuple[tuple[RequestRecord, ...], Replay]:
        """The records of a run, and the replay that says so."""
        if not isinstance(server, RestartedServer):
            raise TypeError(f"{server} keeps no plans")
        key = str(workload), seed
        plan = f"{key[0]} with seed {seed}"
        if plan not in server.plans:
            requests = workload.requests(seed)
            server.engine.keep(plan, self.plan(server, requests, workload.concurrency))
            server.plans.add(plan)
            self.planned_requests[key] = tuple(replace(request, prompt=()) for request in requests)
        replay = server.engine.replay(plan)
        return records_of(self.planned_requests[key], replay), replay
