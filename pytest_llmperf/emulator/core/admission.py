"""Decides whether a waiting sequence can be scheduled, and takes KV blocks for it."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_llmperf.emulator.cache.external import ExternalKv
from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.core.blocks import BlockPool
from pytest_llmperf.emulator.core.counters import Counters
from pytest_llmperf.emulator.core.sequence import Sequence


class Admission:
    """Admits a sequence if enough blocks are free for all its tokens. The sequence takes only those of its first chunk.

    With speculation a chunk of a single token is filled up with empty drafts, so that all rows of a step that only
    decodes are equally long. `padded` is the number of tokens of such a row; 0 if the step also prefills.

    Args:
        loading: sequences that are set aside, see `Scheduler`.
        external: KV cache outside the GPU, such as LMCache. A sequence with a hit there gets blocks and is set aside
            until the load ends. Such a load must leave enough blocks for the sequences that are prefilling.
    """

    def __init__(
        self, config: EngineConfig, pool: BlockPool, counters: Counters, loading: list[tuple[int, Sequence]],
        external: ExternalKv | None = None,
    ) -> None:
        self.external = external
        self._loading = loading
        self._pool = pool
        self._counters = counters
        self._chunked = config.chunked_prefill
        self._longest = config.max_model_len
        speculation = config.speculation
        drafts = speculation.draft_tokens if speculation else 0
        self._lookahead = drafts if speculation and speculation.draft else 0
        self._verified = 1 + drafts + self._lookahead if drafts else 0

    def admit(self, sequence: Sequence, budget: int, padded: int = 0) -> int:
        """Takes blocks for the first chunk of a sequence. Returns the tokens of the chunk; 0 if it is not admitted."""
        pool = self._pool
        hits = pool.cached_blocks(sequence)
        chunk = self._place(sequence, hits, len(hits) * pool.block_size, budget, padded)
        if chunk:
            local, external = sequence.computed if pool.caching else None, None if self.external is None else 0
            self._counters.observe_lookup(sequence, local, external)
        return chunk

    def admit_or_load(
        self, sequence: Sequence, budget: int, padded: int, prefilling: Iterable[Sequence], now_ns: int
    ) -> tuple[int, bool]:
        """Like `admit`, with a lookup in the external KV cache. The second value is whether the sequence was set aside
        to load external KV cache."""
        pool, external = self._pool, self.external
        hits = pool.cached_blocks(sequence)
        local = len(hits) * pool.block_size
        matched = external.matched(sequence, local, now_ns) if external is not None else 0
        if external is None or not matched:
            return self.admit(sequence, budget, padded), False
        size, free = pool.block_size, pool.free - pool.idle_among(hits)
        lacking = -(-(local + matched) // size) - len(hits)
        whole = -(-sequence.length // size) - len(hits)
        if whole > free or lacking > free - self._reserved(prefilling):
            return 0, False
        pool.share(sequence, hits)
        pool.take(sequence, lacking)
        sequence.computed = local + matched
        self._counters.observe_lookup(sequence, local if pool.caching else None,
                                      matched + external.prefilled)  # a transfer brings the last token, too
        self._loading.append((external.load(sequence, local, matched, now_ns), sequence))
        return 0, True

    def resume(self, sequence: Sequence, budget: int, padded: int = 0) -> int:
        """Tokens of the first chunk after the loaded tokens; 0 if the sequence cannot continue yet."""
        return self._place(sequence, [], min(sequence.computed, sequence.length - 1), budget, padded)

    def _place(self, sequence: Sequence, hits: list[int], computed: int, budget: int, padded: int) -> int:
        pool, size = self._pool, self._pool.block_size
        length = sequence.length
        new = length - computed
        if new == 1 and padded and computed + padded < self._longest:
            if padded > budget:
                return 0
            new = padded
        elif new > budget:
            if not self._chunked:
                return 0
            new = budget
        upto = min(computed + new + self._lookahead, self._longest)
        held = len(sequence.blocks) + len(hits)
        lacking = -(-upto // size) - held
        if max(lacking, -(-length // size) - held) > pool.free - (pool.idle_among(hits) if hits else 0):
            return 0
        if hits:
            pool.share(sequence, hits)
        if lacking > 0:
            pool.take(sequence, lacking)
        sequence.computed = computed
        pool.keep(sequence, min(computed + new, length) // size)
        return new

    def _reserved(self, prefilling: Iterable[Sequence]) -> int:
        """Blocks that the prefilling sequences and the loading sequences will still need."""
        size = self._pool.block_size
        partial = [*prefilling, *(sequence for _, sequence in self._loading)]
        lacking = (-(-(s.length + self._verified) // size) - len(s.blocks) for s in partial)
        return sum(max(0, count) for count in lacking) + -(-self._verified // size)
