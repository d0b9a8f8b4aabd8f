"""Plans of token ids, replayed on a deployment by the client of virtual time."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pytest_llmperf.emulator.cluster.deployment import Deployment
from pytest_llmperf.emulator.faults import Faults
from pytest_llmperf.emulator.flags.launch import Launch
from pytest_llmperf.emulator.http.generation_request import GenerationRequest
from pytest_llmperf.emulator.http.service import Service
from pytest_llmperf.load.emulated_request import EmulatedRequest
from pytest_llmperf.load.virtual_client import Client
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest, StreamLimits

_NEVER_NS = 10**18


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a plan; `salt` separates prefix caches, the others are as in `PlannedRequest`."""

    index: int
    prompt: tuple[int, ...]
    max_tokens: int
    at_ns: int | None = None
    after: int | None = None
    think_ns: int = 0
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests by index, and the largest number of them in flight; None for no limit."""

    requests: tuple[Request, ...]
    concurrency: int | None = None


@dataclass(slots=True)
class Answer:
    """What became of a request; all times on the deployment's clock.

    Args:
        index: of the request.
        intended_ns, sent_ns: when it was to go, and went.
        token_ns, token_counts: when tokens came, and how many at once.
        ended_ns: when it was over; None: never (the server is stuck).
        prompt_tokens, cached_tokens, output_tokens: as the server's usage has them.
        refusal: why the server did not take it.
    """

    index: int
    intended_ns: int
    sent_ns: int
    token_ns: list[int]
    token_counts: list[int]
    ended_ns: int | None
    prompt_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    refusal: str | None = None


def replay(deployment: Deployment, plan: Plan) -> list[Answer]:
    """Sends a plan from the deployment's present time on; answers by index."""
    limits = StreamLimits(first_byte_ns=_NEVER_NS, idle_ns=_NEVER_NS, total_ns=_NEVER_NS)
    requests = tuple(PlannedRequest(r.index, "", b"", r.at_ns, r.after, r.think_ns) for r in plan.requests)
    sent = LoadPlan("", 0, requests, concurrency=plan.concurrency, limits=limits)
    asks = [GenerationRequest("completion", (r.prompt,), r.max_tokens, stream=True, salt=r.salt) for r in plan.requests]
    service = Service(Launch(deployment.config, "", 0, "model", ("model",)), deployment, Faults(), 0, 0)
    return [_answer(request) for request in Client(service, sent, asks=asks).run()]


def _answer(request: EmulatedRequest) -> Answer:
    (line,) = request.token_times
    refusal = None if request.reply is None else json.loads(request.reply.body)["error"]["message"]
    return Answer(
        request.index, request.intended_ns, request.sent_ns, line.token_ns, line.counts,
        request.ended_ns if request.ending is Ending.COMPLETE else None, line.sequence.prompt_length,
        line.sequence.cached_tokens or 0, line.sequence.generated, refusal,
    )  # fmt: skip
