"""The interface of all workloads: requests, arrival rate, digest and expected prefix-cache hit rate."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Self, cast

from pytest_llmperf.errors import SpecError, echo
from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.arguments import integer
from pytest_llmperf.workload.arrivals import Arrivals, Recorded
from pytest_llmperf.workload.prompts import with_seeded_replies

# Raise it when the same definition begins to give other requests: old baselines must not match.
FORMAT = 1
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h)")
_SECONDS = {"s": 1, "min": 60, "h": 3600}
#: Tokens or characters of all prompts that `DrawnWorkload` keeps: 32 MB of token ids.
MOST_KEPT_TOKENS = 4_000_000
_kept: dict[tuple[Workload, int], tuple[int, tuple[Request, ...]]] = {}


class Workload(ABC):
    """A seeded list of requests and their arrival times: immutable, hashable, comparable by value."""

    __slots__ = ()

    @abstractmethod
    def requests(self, seed_offset: int = 0) -> tuple[Request, ...]:
        """The requests for the seed `workload.seed + seed_offset`; equal seeds give equal requests.

        Workloads with different seeds share no prompt, except `sharegpt`, which draws prompts from a file.
        """

    @property
    def concurrency(self) -> int | None:
        """Largest number of requests in flight, in a closed loop or with `at_most`; None without a limit."""
        return _arrivals_of(self).concurrency

    @abstractmethod
    def __str__(self) -> str:
        """The call that makes this workload."""

    def __repr__(self) -> str:
        return str(self)

    @property
    def rate(self) -> float:
        """Offered arrivals per second. `multi_turn` counts conversations, all other workloads count requests.

        Raises:
            SpecError: the workload has no single rate.
        """
        return _arrivals_of(self).mean_rate

    @property
    def requests_per_arrival(self) -> float:
        """Turns per conversation of `multi_turn`, else 1. `rate` times this number is requests per second."""
        requests = self.requests()
        return len(requests) / sum(request.after is None for request in requests)

    def at_rate(self, rate: float, seed_offset: int = 0) -> Self:
        """The same workload with another arrival rate; a `seed_offset` other than 0 also changes the requests.

        Raises:
            SpecError: the workload has no single rate.
        """
        arrivals = _arrivals_of(self).at_rate(rate)
        seed = getattr(self, "seed", 0) + seed_offset
        return cast(Self, replace(cast(Any, self), arrivals=arrivals, seed=seed))

    @lru_cache(maxsize=1024)  # noqa: B019 - equal workloads share a result, and a session has few
    def has_text(self, seed: int = 0) -> bool:
        """Whether a prompt of this seed offset is text instead of token ids."""
        return any(isinstance(request.prompt, str) for request in self.requests(seed))

    @lru_cache(maxsize=1024)  # noqa: B019
    def longest(self) -> Request:
        """The request of the first run with the most tokens in prompt and answer together.

        A text prompt counts as 0 tokens, because only the server's tokenizer knows the number of tokens.
        """
        return max(self.requests(), key=lambda request: (request.prompt_tokens or 0) + request.output_tokens)

    @lru_cache(maxsize=1024)  # noqa: B019
    def last_send_s(self) -> float:
        """Send time of the last timed request of the first run, in seconds after the start."""
        return max((request.at_ns or 0 for request in self.requests()), default=0) / 1e9

    def digest(self) -> str:
        """SHA-256 of the definition, in hexadecimal; equal on every machine and in every Python version."""
        return hashlib.sha256(f"workload format {FORMAT}: {self}".encode()).hexdigest()

    def expected_hit_rate(self, block_size: int, seed: int = 0) -> float:
        """Upper bound, 0 to 1, of the share of prompt tokens that a prefix cache with such blocks can supply.

        Args:
            seed: seed offset of the run. If lengths are ranges, the hit rate depends on the seed.

        Raises:
            SpecError: `block_size` is not a whole number ≥ 1, or `seed` is not a whole number.
        """
        size = integer("expected_hit_rate", "block_size", block_size)
        return _expected_hit_rate(self, size, integer("expected_hit_rate", "seed", seed, least=None))


class DrawnWorkload(Workload):
    """A workload whose requests follow from its fields and the seed alone, so that each set is drawn once.

    A run needs its requests for the plan and for the expected hit rate, and the other side of a claim needs them too.
    The sets of the latest `MOST_KEPT_TOKENS` tokens stay in memory.
    """

    __slots__ = ()

    def requests(self, seed_offset: int = 0) -> tuple[Request, ...]:
        key = self, seed_offset
        entry = _kept.pop(key, None)
        if entry is None:
            drawn = self._draw(seed_offset)
            entry = sum(len(request.prompt) for request in drawn), drawn
        _kept[key] = entry
        excess = sum(tokens for tokens, _ in _kept.values()) - MOST_KEPT_TOKENS
        while excess > 0:
            excess -= _kept.pop(next(iter(_kept)))[0]
        return entry[1]

    @abstractmethod
    def _draw(self, seed_offset: int) -> tuple[Request, ...]:
        """See `requests`."""


@lru_cache(maxsize=1024)  # hashing a hundred long prompts takes a tenth of a second, and every run asks
def _expected_hit_rate(workload: Workload, block_size: int, seed: int) -> float:
    return ideal_hit_rate(workload.requests(seed), block_size)


def _arrivals_of(workload: Workload) -> Arrivals:
    arrivals = getattr(workload, "arrivals", None)
    if not isinstance(arrivals, Arrivals):
        raise SpecError(f"{workload} has no one rate: give a workload with arrivals=constant(8), poisson(8), ….")
    return arrivals


def check_arrivals(call: str, arrivals: object, count: int) -> None:
    """Raise SpecError if `arrivals` is not an arrival process or has fewer times than `count`."""
    if not isinstance(arrivals, Arrivals):
        raise SpecError(f"{call}: arrivals must be one of constant, poisson, gamma, ramp, at_times and closed, as in "
                        f"arrivals=poisson(8), got {arrivals!r}.")
    if isinstance(arrivals, Recorded):
        raise SpecError(f"{call}: arrivals={echo(arrivals)} needs recorded times, and only trace(…) has them.")
    if arrivals.capacity is not None and arrivals.capacity < count:
        raise SpecError(f"{call}: {count} requests need {count} arrival times, at_times has {arrivals.capacity}.")


def arrival_count(call: str, name: str, value: object, arrivals: object) -> int:
    """A number of arrivals, also given as a duration such as "90s", "10min" or "2h" at the rate of `arrivals`.

    Raises:
        SpecError: the value is neither, or the arrival process has no single rate.
    """
    if not isinstance(value, str):
        return integer(call, name, value)
    matched = _DURATION.fullmatch(value.strip())
    if matched is None or float(matched[1]) == 0:
        raise SpecError(f'{call}: {name}={value!r} is no number and no duration. Write {name}=600 or {name}="10min" '
                        "(s, min or h).")
    if not isinstance(arrivals, Arrivals) or arrivals.concurrency is not None:
        raise SpecError(f"{call}: {name}={value!r} needs a rate, and arrivals={echo(arrivals)} has none. Write "
                        f"arrivals=poisson(8), or a number of {name}.")
    return max(1, round(float(matched[1]) * _SECONDS[matched[2]] * arrivals.mean_rate))


def ideal_hit_rate(requests: Iterable[Request], block_size: int) -> float:
    """Upper bound, 0 to 1, of the prefix-cache hit rate: the hit rate of an unlimited cache.

    A block is a hit if an earlier prompt starts with the same tokens up to the end of the block. The last token of a
    prompt is always computed, so a repeated prompt of P tokens hits floor((P - 1) / block_size) blocks. Generated
    tokens count where the next turn contains them. In a text prompt words replace tokens, so the bound is an estimate.
    """
    seen: set[int] = set()
    hits = total = 0
    for request, answered in with_seeded_replies(requests):
        prompt, whole = (part.split() if isinstance(part, str) else part for part in (request.prompt, answered))
        chain = _chain(prompt, block_size)
        usable = (len(prompt) - 1) // block_size
        hits += block_size * next((i for i, key in enumerate(chain[:usable]) if key not in seen), usable)
        total += len(prompt)
        seen.update(chain if whole == prompt else _chain(whole, block_size))
    return hits / total if total else 0.0


def _chain(prompt: Sequence[object], block_size: int) -> list[int]:
    """A key for each whole block, computed from the block and all earlier blocks."""
    keys, key = [], 0
    for start in range(0, len(prompt) - block_size + 1, block_size):
        key = hash((key, tuple(prompt[start : start + block_size])))
        keys.append(key)
    return keys
