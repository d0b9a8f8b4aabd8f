"""In which order SGLang looks at waiting sequences, and how many decode tokens it reserves for those that run."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass

from pytest_llmperf.emulator.cache.radix import RadixCache
from pytest_llmperf.emulator.cache.radix_tree import RadixTree
from pytest_llmperf.emulator.core.sequence import Sequence

LONGEST_MATCHED_QUEUE = 128
SHORT_PREFIX = 32


def by_longest_prefix(
    waiting: List[Sequence], matched: Callable[[Sequence], int], tokens: Callable[[Sequence], tuple[int, ...]]
) -> list[Sequence]:
    """The order of policy lpm (0.5.15): the longest cached prefix first, equals as they were; as they were, too,
    where more than 128 wait. Of several that hit at most 32 cached tokens but share a prefix of at least 32 among
    themselves, all but the first go last: they will find it cached when that one is through.

    Args:
        matched: cached prefix of a sequence, tokens.
        tokens: its token ids.
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
        if among.match(tokens(sequence), sequence.salt)[0] >= SHORT_PREFIX:
            deferred.add(sequence)
        else:
            among.insert(tokens(sequence), sequence.salt)
    return sorted(waiting, key=lambda s: (1, 0) if s in deferred else (0, -prefixes[s]))


class NewTokenRatio:
    """The share of their remaining max_tokens that running sequences are expected to use. It falls with each decode
    step from 0.7 × conservativeness to 0.14 of that within 600 steps; a retraction sets it to what was used so far.

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

    def after_retraction(self, kept: List[Sequence]) -> None:
        used = sum(sequence.generated + 20 for sequence in kept)
        self.current = min(1.0, used / (sum(sequence.max_tokens for sequence in kept) + 1))


@dataclass(slots=True)
class PrefillBudget:
    """What a prefill batch may still take.

    Args:
        reserved: tokens of the pool that are spoken for: by the batch, and by what the running ones will generate.
        chunk: tokens of this batch; None: prompts are not cut.
        prefill: tokens of this batch, which only a first prompt that is not cut may pass.
    """

    cache: RadixCache
    reserved: float
    chunk: int | None
    prefill: int

    @property
    def pool(self) -> float:
        return self.cache.free - self.reserved

    @property
    def spent(self) -> bool:
        return self.prefill <= 0 or (self.chunk is not None and self.chunk <= 0)

    def fit(self, cached: int, rest: int, others: bool) -> int:
        """How much of `rest` tokens after cached ones goes into this batch."""
        page = self.cache.page_size
        paged = -(-rest // page) * page
        if self.chunk is None:
            return 0 if others and paged >= self.prefill else rest
        if paged <= self.chunk:
            return rest
        return max(0, (cached + self.chunk // page * page) // page * page - cached)

    def charge(self, tokens: int, new_tokens: int) -> None:
        """Takes tokens to compute now, and reserves what the sequence will generate."""
        page = self.cache.page_size
        paged = -(-tokens // page) * page
        self.reserved += paged + page + new_tokens
        self.prefill -= paged
        if self.chunk is not None:
            self.chunk -= paged
