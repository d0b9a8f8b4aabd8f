"""What every workload can say about itself."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import lru_cache
from typing import Any, Self, cast

from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.arguments import integer
from pytest_llmperf.workload.arrivals import Arrivals
from pytest_llmperf.workload.hit_rate import ideal_hit_rate

# Raise it when the same definition begins to give other requests: old baselines must not match.
FORMAT = 1


class Workload(ABC):
    """A seeded list of requests and their arrival times: immutable, hashable, comparable by value."""

    __slots__ = ()

    @abstractmethod
    def requests(self, seed_offset: int = 0) -> tuple[Request, ...]:
        """The requests of the workload's seed + `seed_offset`, always the same ones.

        Other seeds share no prompt, but where all draw from one file.
        """

    @property
    @abstractmethod
    def concurrency(self) -> int | None:
        """The limit of requests in flight in a closed loop; None in an open loop."""

    @abstractmethod
    def __str__(self) -> str:
        """The call that makes this workload."""

    def __repr__(self) -> str:
        return str(self)

    @property
    def rate(self) -> float:
        """Arrivals per second that it offers: of requests, or of `multi_turn`'s conversations.

        Raises:
            SpecError: it has no one rate.
        """
        return _arrivals_of(self).mean_rate

    @property
    def requests_per_arrival(self) -> float:
        """1, or the turns of a conversation: requests/s are `rate` times this."""
        requests = self.requests()
        return len(requests) / sum(request.after is None for request in requests)

    def at_rate(self, rate: float, seed_offset: int = 0) -> Self:
        """The same requests in the same pattern at another rate; `seed_offset` gives others.

        Raises:
            SpecError: it has no one rate.
        """
        arrivals = _arrivals_of(self).at_rate(rate)
        seed = getattr(self, "seed", 0) + seed_offset
        return cast(Self, replace(cast(Any, self), arrivals=arrivals, seed=seed))

    def longest(self) -> Request:
        """The request of the first run with the most tokens in prompt and answer together.

        Of a prompt that is text only the server's tokenizer knows the tokens: it counts as none.
        """
        return _longest(self)

    def digest(self) -> str:
        """SHA-256 of the definition, in hexadecimal; equal on every machine and in every Python version."""
        return hashlib.sha256(f"workload format {FORMAT}: {self}".encode()).hexdigest()

    def expected_hit_rate(self, block_size: int, seed: int = 0) -> float:
        """Upper bound, 0 to 1, of the share of prompt tokens that a prefix cache with such blocks can supply.

        Args:
            seed: of the run: where lengths are ranges, other requests repeat another share.

        Raises:
            SpecError: that is no size, or no seed.
        """
        size = integer("expected_hit_rate", "block_size", block_size)
        return _expected_hit_rate(self, size, integer("expected_hit_rate", "seed", seed, least=None))


@lru_cache(maxsize=1024)  # hashing a hundred long prompts takes a tenth of a second, and every run asks
def _expected_hit_rate(workload: Workload, block_size: int, seed: int) -> float:
    return ideal_hit_rate(workload.requests(seed), block_size)


@lru_cache(maxsize=1024)
def _longest(workload: Workload) -> Request:
    return max(workload.requests(), key=lambda request: (request.prompt_tokens or 0) + request.output_tokens)


def _arrivals_of(workload: Workload) -> Arrivals:
    arrivals = getattr(workload, "arrivals", None)
    if not isinstance(arrivals, Arrivals):
        raise SpecError(f"{workload} has no one rate: give a workload with arrivals=constant(8), poisson(8), ….")
    return arrivals


def check_arrivals(call: str, arrivals: object, count: int) -> None:
    """Refuse what is no arrival process, or one that is too short."""
    if not isinstance(arrivals, Arrivals):
        raise SpecError(f"{call}: arrivals must be one of constant, poisson, gamma, ramp, at_times and closed, as in "
                        f"arrivals=poisson(8), got {arrivals!r}.")
    if arrivals.capacity is not None and arrivals.capacity < count:
        raise SpecError(f"{call}: {count} requests need {count} arrival times, at_times has {arrivals.capacity}.")
