"""Long prefills arriving beside short decoding streams: what chunked prefill is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmperf.errors import SpecError, echo
from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.arguments import as_call, integer, keywords_only
from pytest_llmperf.workload.base import Workload
from pytest_llmperf.workload.prompts import derive
from pytest_llmperf.workload.random_tokens import RandomTokens, random_tokens


@dataclass(frozen=True, slots=True, repr=False)
class Mixed(Workload):
    """Built by `mixed`."""

    stream: RandomTokens
    prefill: RandomTokens
    seed: int = 0

    def requests(self, seed_offset: int = 0) -> tuple[Request, ...]:
        both = [*self._of("stream", self.stream, seed_offset, first=0),
                *self._of("prefill", self.prefill, seed_offset, first=self.stream.count)]
        both.sort(key=lambda request: request.at_ns or 0)
        position = {request.index: index for index, request in enumerate(both)}
        return tuple(replace(request, index=index, after=None if request.after is None else position[request.after])
                     for index, request in enumerate(both))

    def _of(self, tag: str, part: RandomTokens, seed_offset: int, first: int) -> list[Request]:
        """One class of the mix. A closed loop of c becomes c chains, so that it does not hold up the other class."""
        seeded = replace(part, seed=derive(self.seed + seed_offset, tag, part.seed))
        placed = [replace(request, index=first + request.index, tag=tag) for request in seeded.requests()]
        if part.concurrency is not None:
            return [replace(request, at_ns=0) if i < part.concurrency
                    else replace(request, after=request.index - part.concurrency) for i, request in enumerate(placed)]
        return placed

    @property
    def concurrency(self) -> None:
        return None

    def __str__(self) -> str:
        return as_call("mixed", self)


@keywords_only
def mixed(*, stream: Mapping[str, Any] | Workload, prefill: Mapping[str, Any] | Workload, seed: int = 0) -> Workload:
    """Two classes of random prompts in one run, tagged "stream" and "prefill".

    Args:
        stream, prefill: the arguments of `random_tokens` as a mapping, such as
            {"input": 64, "output": 200, "arrivals": closed(4), "requests": 20}, or such a workload.
        seed: seed of the prompts, lengths and times. Run k uses seed + k, so workloads with adjacent seeds share runs.

    Raises:
        SpecError: the arguments of a class or the seed are not valid.
    """
    return Mixed(_part("stream", stream), _part("prefill", prefill), integer("mixed", "seed", seed, least=None))


def _part(name: str, given: Mapping[str, Any] | Workload) -> RandomTokens:
    if isinstance(given, Mapping):
        try:
            given = random_tokens(**given)
        except (SpecError, TypeError) as error:
            text = str(error).rstrip(".")
            raise SpecError(f"mixed: {name} takes the arguments of random_tokens: {text}.") from None
    if not isinstance(given, RandomTokens):
        raise SpecError(f"mixed: {name} must be the arguments of random_tokens or such a workload, got {given!r}.")
    if given.concurrency is not None and given.arrivals.offsets_ns(1, 0) is not None:
        raise SpecError(f"mixed: {name} has arrivals={echo(given.arrivals)}, and a class of a mix has no limit beside "
                        "its arrivals. Use closed(16) or poisson(8).")
    return given
