"""In which order SGLang looks at waiting sequences, and how many decode tokens it reserves for those that run."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass

from pytest_llmperf.emulator.cache.radix import RadixCache
from pytest_llmperf.emulator.cache.radix_tree import Node, RadixTree
from pytest_llmperf.emulator.core.sequence import Sequence

LONGEST_MATCHED_QUEUE = 128
SHORT_PREFIX = 32


def by_longest_prefix(waiting: List[Sequence], matched: Callable[[Sequence], int]) -> list[Sequence]:
    """Sorts the queue by policy lpm (0.5.15): the longest cached prefix first; ties keep their order. A queue of more
    than 128 sequences is not sorted. Sequences that hit at most 32
    cached tokens, but share a prefix of at least 32 tokens with another waiting sequence, form a group. The first of a
    group keeps its place, and puts the shared prefix into the cache. The rest of the group goes last.

    Args:
        matched: cached prefix of a sequence, tokens.
    """
    if len(waiting) > LONGEST_MATCHED_QUEUE:
        return list(waiting)
    among = RadixTree()
    deferred: set[Sequence] = set()
    prefixes: dict[Sequence, int] = {}
    for sequence in waiting:
        prefixes[sequence] = matched(sequence)
        if prefixes[sequence] > SHORT_PREFIX:
            continue
        tokens = sequence.tokens(0, sequence.length)
        if among.match(tokens, sequence.salt)[0] >= SHORT_PREFIX:
            deferred.add(sequence)
        else:
            among.insert(tokens, sequence.salt)
    return sorted(waiting, key=lambda s: (1, 0) if s in deferred else (0, -prefixes[s]))


def by_subtree_weight(waiting: List[Sequence], node_of: Callable[[Sequence], Node]) -> list[Sequence]:
    """Sorts the queue by policy dfs-weight (0.5.23): depth first through the radix tree, the child below which most
    sequences wait first. Sequences whose prefix ends at a node come after the sequences below the node.

    Args:
        node_of: node at which the cached prefix of a sequence ends.
    """
    ending: dict[Node, list[Sequence]] = {}
    for sequence in waiting:
        ending.setdefault(node_of(sequence), []).append(sequence)
    weights: dict[Node, int] = {}
    roots: dict[Node, None] = {}
    for end, sequences in ending.items():
        node: Node | None = end
        while node is not None:
            weights[node] = weights.get(node, 0) + len(sequences)
            if node.parent is None:
                roots[node] = None
            node = node.parent
    ordered: list[Sequence] = []
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, below_done = stack.pop()
        if below_done:
            ordered += ending.get(node, [])
            continue
        stack.append((node, True))
        children = sorted((child for child in node.children.values() if child in weights), key=lambda c: -weights[c])
        stack += [(child, False) for child in reversed(children)]
    return ordered


class NewTokenRatio:
    """The share of their remaining max_tokens that running sequences are expected to use. The ratio starts at
    0.7 × conservativeness and falls to 0.14 of this start value within 600 decode steps. A retraction sets the ratio
    to the share that the remaining sequences have used so far.

    Args:
        conservativeness: --schedule-conservativeness.
    """

    def __init__(self, conservativeness: float = 1.0) -> None:
        self.initial = min(0.7 * conservativeness, 1.0)
        self.least = min(self.initial * 0.14, 1.0)
        self.current = self.initial

    def decay(self, steps: int = 1) -> None:
        for _ in range(steps):
            if self.current <= self.least:
                break
            self.current = max(self.current - (self.initial - self.least) / 600, self.least)

    def reset(self) -> None:
        """The engine is idle."""
        self.current = self.initial

    def after_retraction(self, remaining: List[Sequence]) -> None:
        used = sum(sequence.generated + 20 for sequence in remaining)
        self.current = min(1.0, used / (sum(sequence.max_tokens for sequence in remaining) + 1))


@dataclass(slots=True)
class PrefillBudget:
    """The remaining budget of a prefill batch.

    Args:
        reserved: tokens of the pool that are reserved for the batch and for tokens of the running sequences.
        chunk: remaining tokens of the chunk; None if prompts are not cut.
        prefill: remaining tokens of the batch. Only a first prompt that is not cut may exceed this budget.
        taken: tokens of the pool that the batch itself uses.
        ends: per running or admitted sequence, number of tokens still to generate and number of tokens that its end
            frees; None before the first call of `lasts`.
    """

    cache: RadixCache
    reserved: float
    chunk: int | None
    prefill: int
    taken: float = 0.0
    ends: list[tuple[int, int]] | None = None

    @property
    def pool(self) -> float:
        return self.cache.free - self.reserved

    def lasts(self, newcomer: Sequence, rest: int, going: List[Sequence]) -> bool:
        """Whether the pool is large enough for all sequences to generate max_tokens if a newcomer joins the batch.

        SGLang 0.5.15 checks this without a prefix cache, for requests that ignore the end of text; all requests of this
        project do. Like SGLang, the method sorts its list once per batch. A newcomer that has more to generate than all
        other sequences is inserted before the last entry.

        Args:
            rest: tokens of the newcomer's prompt that are not computed yet.
        """
        free = self.cache.free - self.taken
        if self._paged(rest) > min(free, self.pool):
            return False
        if self.ends is None:
            self.ends = sorted(filter(None, map(_end, (newcomer, *going))), key=lambda end: end[0])
        elif (end := _end(newcomer)) is not None:
            later = (place for place, other in enumerate(self.ends) if end[0] <= other[0])
            self.ends.insert(next(later, max(0, len(self.ends) - 1)), end)
        free -= self._paged(rest)
        for place, (left, held) in enumerate(self.ends):
            streams = len(self.ends) - place
            if free - left * streams <= streams:
                return False
            free += held
        return True

    def _paged(self, tokens: int) -> int:
        return -(-tokens // self.cache.page_size) * self.cache.page_size

    @property
    def spent(self) -> bool:
        return self.prefill <= 0 or (self.chunk is not None and self.chunk <= 0)

    def fit(self, cached: int, rest: int, others: bool) -> int:
        """How much of `rest` tokens after cached ones goes into this batch."""
        page, paged = self.cache.page_size, self._paged(rest)
        if self.chunk is None:
            return 0 if others and paged >= self.prefill else rest
        if paged <= self.chunk:
            return rest
        return max(0, (cached + self.chunk // page * page) // page * page - cached)

    def charge(self, tokens: int, new_tokens: int) -> None:
        """Takes tokens to compute now, and reserves what the sequence will generate."""
        page, paged = self.cache.page_size, self._paged(tokens)
        self.taken += paged + page
        self.reserved += paged + page + new_tokens
        self.prefill -= paged
        if self.chunk is not None:
            self.chunk -= paged


def _end(sequence: Sequence) -> tuple[int, int] | None:
    left = sequence.max_tokens - sequence.generated
    return (left, sequence.prompt_length + sequence.generated) if left > 0 else None
