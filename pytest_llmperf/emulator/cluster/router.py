"""Which of several equal engines gets a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pytest_llmperf.emulator.cache.radix_tree import RadixTree

RouterName = Literal["cache-aware", "least-loaded", "round-robin"]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Args:
    in_flight: requests that the router gave to the engine and that are not finished.
    waiting: requests in flight that are still in the engine's queue.
    kv_usage: share of the engine's KV cache that running sequences hold, 0 to 1.
    """

    in_flight: int
    waiting: int = 0
    kv_usage: float = 0.0


class Router(Protocol):
    def choose(self, prompt: tuple[int, ...], salt: str, loads: Sequence[EngineLoad]) -> int:
        """Index of the engine that gets the prompt."""
        ...

    def reset(self) -> None:
        """Forgets which prompts went where (the engines' caches are empty)."""
        ...


class RoundRobin:
    def __init__(self) -> None:
        self._next = 0

    def choose(self, prompt: tuple[int, ...], salt: str, loads: Sequence[EngineLoad]) -> int:  # noqa: ARG002
        chosen = self._next % len(loads)
        self._next = chosen + 1
        return chosen

    def reset(self) -> None:
        pass


class LeastLoaded:
    """vLLM's internal data-parallel balancing (0.32): the fewest requests in flight; those that wait weigh more the
    fuller the KV cache is above a half; of equals the next in turn."""

    def __init__(self) -> None:
        self._first = 0

    def choose(self, prompt: tuple[int, ...], salt: str, loads: Sequence[EngineLoad]) -> int:  # noqa: ARG002
        def score(index: int) -> float:
            load = loads[index]
            return load.in_flight + load.waiting * 6.0 * max(0.0, load.kv_usage - 0.5)

        turn = [(self._first + offset) % len(loads) for offset in range(len(loads))]
        self._first = (self._first + 1) % len(loads)
        return min(turn, key=score)

    def reset(self) -> None:
        pass


class CacheAware:
    """SGLang's router (sglang-router 0.3.2, its default policy and thresholds). SGLang matches characters, this router
    matches tokens.

    If the loads differ by more than `balance_abs` and by more than the factor `balance_rel`, the router chooses the
    shortest queue. Otherwise the router chooses the engine that earlier received the longest prefix of this prompt, if
    the prefix is longer than `cache_threshold` of the prompt. Any other prompt goes to the shortest queue. The router
    remembers the prompts that it sent, but does not know which prefixes the engines have evicted.

    Args:
        engines: number of engines.
        tree_tokens: number of tokens that the router remembers per engine. It forgets the least recently used first.
    """

    def __init__(
        self,
        engines: int,
        *,
        cache_threshold: float = 0.3,
        balance_abs: int = 64,
        balance_rel: float = 1.5,
        tree_tokens: int = 2**24,
    ) -> None:
        self.cache_threshold = cache_threshold
        self.balance_abs = balance_abs
        self.balance_rel = balance_rel
        self.tree_tokens = tree_tokens
        self._trees = [RadixTree() for _ in range(engines)]

    def choose(self, prompt: tuple[int, ...], salt: str, loads: Sequence[EngineLoad]) -> int:
        chosen = self._select(prompt, salt, [load.in_flight for load in loads])
        tree = self._trees[chosen]
        tree.insert(prompt, salt)
        if tree.size > self.tree_tokens:
            tree.evict(tree.size - self.tree_tokens)
        return chosen

    def reset(self) -> None:
        for tree in self._trees:
            tree.reset()

    def _select(self, prompt: tuple[int, ...], salt: str, queues: list[int]) -> int:
        most, fewest = max(queues), min(queues)
        if most - fewest > self.balance_abs and most > fewest * self.balance_rel:
            return queues.index(fewest)
        matched = [tree.match(prompt, salt)[0] for tree in self._trees]
        longest = max(matched)
        if not prompt or longest / len(prompt) <= self.cache_threshold:
            return queues.index(fewest)
        return min((i for i, length in enumerate(matched) if length == longest), key=queues.__getitem__)


def make_router(name: RouterName, engines: int) -> Router:
    if name == "cache-aware":
        return CacheAware(engines)
    return LeastLoaded() if name == "least-loaded" else RoundRobin()
