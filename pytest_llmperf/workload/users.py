"""What users do with requests: they cancel some, send refused ones again, and ask several models."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from pytest_llmperf.clock import seconds
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.request import Cancellation, Request, RetryPolicy
from pytest_llmperf.workload.arguments import call_text, integer, number
from pytest_llmperf.workload.base import FORMAT, Workload
from pytest_llmperf.workload.prompts import stream

_MOST_ATTEMPTS = 20
_LARGEST_BACKOFF_S = 60.0


@dataclass(frozen=True, slots=True, repr=False)
class _Around(Workload):
    """The requests of an inner workload, with further facts."""

    workload: Workload

    @property
    def seed(self) -> int:
        """Seed of the inner workload."""
        return int(getattr(self.workload, "seed", 0))

    @property
    def concurrency(self) -> int | None:
        return self.workload.concurrency

    @property
    def rate(self) -> float:
        return self.workload.rate

    def digest(self) -> str:
        """As everywhere, with the digest of the inner workload in place of its definition."""
        definition = str(self).replace(str(self.workload), self.workload.digest(), 1)
        return hashlib.sha256(f"workload format {FORMAT}: {definition}".encode()).hexdigest()

    def at_rate(self, rate: float, seed_offset: int = 0) -> Self:
        return cast(Self, replace(cast(Any, self), workload=self.workload.at_rate(rate, seed_offset)))


@dataclass(frozen=True, slots=True, repr=False)
class Cancelled(_Around):
    """Built by `cancelled`."""

    share: float
    after_tokens: int | None = None
    after_s: float | None = None

    def requests(self, seed_offset: int = 0) -> tuple[Request, ...]:
        draws = stream(self.seed + seed_offset, "cancelled")
        after_ns = None if self.after_s is None else seconds(self.after_s)
        cancellation = Cancellation(self.after_tokens, after_ns)
        return tuple(
            replace(request, cancellation=cancellation) if drawn and self._ends_early(request) else request
            for request in self.workload.requests(seed_offset) for drawn in [draws.random() < self.share]
        )

    def _ends_early(self, request: Request) -> bool:
        return self.after_tokens is None or self.after_tokens < request.output_tokens

    __str__ = call_text("cancelled")


@dataclass(frozen=True, slots=True, repr=False)
class Retried(_Around):
    """Built by `retried`."""

    attempts: int
    backoff_s: float = 0.5

    def requests(self, seed_offset: int = 0) -> tuple[Request, ...]:
        policy = RetryPolicy(self.attempts, seconds(self.backoff_s))
        return tuple(replace(request, retry=policy) for request in self.workload.requests(seed_offset))

    __str__ = call_text("retried")


@dataclass(frozen=True, slots=True, repr=False)
class AcrossModels(_Around):
    """Built by `across_models`."""

    models: tuple[tuple[str, float], ...]

    def requests(self, seed_offset: int = 0) -> tuple[Request, ...]:
        draws = stream(self.seed + seed_offset, "models")
        names: dict[int, str] = {}
        made = []
        for request in self.workload.requests(seed_offset):
            name = self._drawn(draws.random()) if request.turn == 1 or request.after is None else names[request.after]
            names[request.index] = name
            made.append(replace(request, model=name))
        return tuple(made)

    def _drawn(self, draw: float) -> str:
        """The model whose part of 0…1 contains `draw`."""
        reached, total = 0.0, sum(share for _, share in self.models)
        for name, share in self.models:
            reached += share / total
            if draw < reached:
                return name
        return self.models[-1][0]

    def expected_hit_rate(self, block_size: int, seed: int = 0) -> float:
        """Upper bound of the hit rate: each model has a prefix cache of its own."""
        return self.workload.expected_hit_rate(block_size, seed)

    def __str__(self) -> str:
        return f"across_models(workload={self.workload}, models={dict(self.models)!r})"


def cancelled(workload: Workload, *, share: float, after_tokens: int | None = None,
              after_s: float | None = None) -> Workload:
    """The same requests, of which the client cancels some by closing the connection, as users do who stop reading.

    A cancelled request has a TTFT and times between tokens, and no E2E latency. A request that is cancelled before its
    first token counts as infinitely slow in TTFT. The metric `cancelled_rate` counts cancelled requests, and
    `error_rate` does not.

    Args:
        workload: the requests.
        share: share of the requests that are cancelled, above 0 and at most 1. A seeded draw chooses them.
        after_tokens: number of generated tokens after whose arrival the client cancels. An answer that is not longer
            is read to its end.
        after_s: time from the begin of the first send to the cancellation, in s; the time to connect counts.

    Raises:
        SpecError: an argument is invalid, or later turns contain the answers of the server.
    """
    _check_workload("cancelled", workload)
    if (after_tokens is None) == (after_s is None):
        raise SpecError("cancelled: say when requests are cancelled: write either after_tokens=20 or after_s=2.")
    inner = workload
    while isinstance(inner, _Around):
        inner = inner.workload
    if getattr(inner, "reply", "seeded") == "server":
        raise SpecError('cancelled: with reply="server" the next turn contains the whole answer, and a cancelled '
                        'answer is incomplete. Write reply="seeded".')
    return Cancelled(workload, number("cancelled", "share", share, above=0, most=1),
                     None if after_tokens is None else integer("cancelled", "after_tokens", after_tokens),
                     None if after_s is None else number("cancelled", "after_s", after_s, above=0, most=1e6))


def retried(workload: Workload, *, attempts: int, backoff_s: float = 0.5) -> Workload:
    """The same requests, sent again where one fails, much as the clients of OpenAI do.

    A request is sent again after HTTP 408, 429 or 5xx, after a connection that failed, and after a timeout, as long as
    no content of the answer has arrived. Latencies count from the first intended send, pauses included. The metrics
    `retries` and `retried_prompt_tokens` state the cost.

    Args:
        workload: the requests.
        attempts: largest number of sends of a request, from 2 to 20.
        backoff_s: pause before the second send, in seconds. Each further pause is twice as long. A longer
            `Retry-After` of the service, up to 60 s, is respected. The pauses have no random part.

    Raises:
        SpecError: an argument is invalid.
    """
    _check_workload("retried", workload)
    if integer("retried", "attempts", attempts, least=2) > _MOST_ATTEMPTS:
        raise SpecError(f"retried: attempts must be at most {_MOST_ATTEMPTS}, got {attempts}.")
    return Retried(workload, attempts, number("retried", "backoff_s", backoff_s, least=0, most=_LARGEST_BACKOFF_S))


def across_models(workload: Workload, models: Mapping[str, float]) -> Workload:
    """The same requests, distributed over models or LoRA adapters of one server.

    A seeded draw chooses the model of each request; all turns of a conversation ask one model. An answer that names
    another model than its request makes the test an ERROR.

    Args:
        workload: the requests.
        models: share of the requests by name, as the server lists the name under /v1/models:
            {"base": 0.7, "sql-lora": 0.3}. The name "" is the model of the engine. Shares need not sum to 1.

    Raises:
        SpecError: an argument is invalid.
    """
    _check_workload("across_models", workload)
    if not isinstance(models, Mapping) or not models or not all(isinstance(name, str) for name in models):
        raise SpecError(f'across_models: models must be shares by name, such as {{"": 0.7, "sql-lora": 0.3}}, got '
                        f"{models!r}.")
    shares = {name: number("across_models", f"the share of {name!r}", share, above=0) for name, share in models.items()}
    return AcrossModels(workload, tuple(shares.items()))


def _check_workload(call: str, workload: object) -> None:
    if not isinstance(workload, Workload):
        raise SpecError(f"{call}: the first argument is a workload, such as random_tokens(…), got {workload!r}.")
