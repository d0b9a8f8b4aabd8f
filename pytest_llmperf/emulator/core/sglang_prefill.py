"""Selects the waiting sequences of SGLang's next prefill batch (0.5.15), and the number of tokens of each."""

from __future__ import annotations

from pytest_llmperf.emulator.cache.external import ExternalKv
from pytest_llmperf.emulator.cache.radix import RadixCache
from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.core.counters import Counters
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.core.sglang_policy import PrefillBudget, by_longest_prefix, by_subtree_weight

MOST_NEW_TOKENS = 4096


class PrefillQueue:
    """The waiting sequences, the sequences that load external KV cache, and the prompt that was cut.

    Admission reserves prompt + max_tokens (at most 4096 of max_tokens) for a new sequence. For running sequences it
    reserves a share of their remaining max_tokens (0.5.23: all of it for requests with ignore_eos). Without a prefix
    cache, admission simulates the ends of all sequences instead (`PrefillBudget.lasts`). A prompt that exceeds the
    chunk is cut and continues in the next batch, before all other prompts; only one prompt can be cut at a time. After
    the pool or max_running_requests was found full, no sequence is admitted until a sequence ends.

    Attributes:
        full: whether the pool or max_running_requests was found full.
    """

    def __init__(
        self, config: EngineConfig, cache: RadixCache, counters: Counters, loading: list[tuple[int, Sequence]],
        external: ExternalKv | None,
    ) -> None:
        self.waiting: list[Sequence] = []
        self.loading = loading
        self.chunked: Sequence | None = None
        self.full = False
        self._config = config
        self._cache = cache
        self._counters = counters
        self._external = external
        self._policy = config.policy if config.prefix_caching else "fcfs"
        self._chunk = config.max_num_batched_tokens if config.chunked_prefill else None

    def discard(self, sequence: Sequence) -> None:
        """Removes a sequence from the queue."""
        self.waiting = [waiting for waiting in self.waiting if waiting is not sequence]
        if sequence is self.chunked:
            self.chunked = None
        self.full = False

    def take_up_loaded(self, now_ns: int, places: int) -> list[Sequence]:
        """Moves sequences whose load has ended to the front of the queue. Sequences without remaining prefill are
        returned for decoding instead, at most `places` of them."""
        decoding: list[Sequence] = []
        at_once = self._external is not None and self._external.prefilled
        for entry in [entry for entry in self.loading if entry[0] <= now_ns]:
            sequence = entry[1]
            self.loading.remove(entry)
            if at_once and sequence.computed == sequence.length - 1 and len(decoding) < places:
                decoding.append(sequence)
            else:
                self.waiting.insert(0, sequence)
        return decoding

    def choose(self, running: list[Sequence], share: float, now_ns: int) -> list[tuple[Sequence, int]]:
        """The next batch: sequences and the number of tokens of each. The sequences leave the queue.

        Args:
            share: share of their remaining max_tokens that is reserved for running sequences.
        """
        if not running:
            self.full = False
        if (self.full or not self.waiting) and self.chunked is None:
            return []
        if self.chunked is None and len(running) >= self._config.max_num_seqs:
            self.full = True
            return []
        budget = self._budget(running, share)
        chosen: list[tuple[Sequence, int]] = []
        if self.chunked is not None and (tokens := self._continue(self.chunked, budget)):
            chosen.append((self.chunked, tokens))
            self.chunked = None
        self._admit(chosen, running, budget, now_ns)
        for sequence, tokens in chosen:
            if sequence.computed + tokens < sequence.length:
                self.chunked = sequence
        return chosen

    def _budget(self, running: list[Sequence], share: float) -> PrefillBudget:
        mixed = len(running) if self._config.mixed_chunk else 0
        remaining = [min(s.max_tokens - s.generated, MOST_NEW_TOKENS) for s in running]
        chunk = None if self._chunk is None else self._chunk - mixed
        prefill = self._config.max_prefill_tokens - mixed
        return PrefillBudget(self._cache, sum(remaining) * share + mixed, chunk, prefill, mixed)

    def _continue(self, sequence: Sequence, budget: PrefillBudget) -> int:
        """Tokens of the next chunk of the prompt that was cut. The chunk ignores the reservations of running sequences;
        it is empty if the pool has no free token."""
        rest = sequence.length - sequence.computed
        limit = rest if budget.chunk is None else budget.chunk
        if 0 < budget.pool < limit:
            limit = max(1, int(budget.pool))
        tokens = max(0, min(rest, limit, self._cache.room(sequence, sequence.computed)))
        budget.charge(tokens, min(sequence.max_tokens, MOST_NEW_TOKENS) if tokens == rest else 0)
        return tokens

    def _admit(
        self, chosen: list[tuple[Sequence, int]], running: list[Sequence], budget: PrefillBudget, now_ns: int
    ) -> None:
        """Adds waiting sequences to the batch until the budget, the places or the pool is used up."""
        removed: set[Sequence] = set()
        for sequence in self._ordered():
            if budget.spent:
                break
            if len(chosen) >= self._config.max_num_seqs - len(running):
                self.full = True
                break
            going = [] if self._cache.enabled else [*running, *(other for other, _ in chosen)]
            tokens, aside = self._take_in(sequence, budget, going, bool(chosen), now_ns)
            if tokens:
                chosen.append((sequence, tokens))
            if tokens or aside:
                removed.add(sequence)
            if tokens is None or budget.pool <= 0:
                self.full = bool(chosen or running)
                break
            if not tokens and not aside:
                break
        if removed:
            self.waiting = [sequence for sequence in self.waiting if sequence not in removed]
        elif not (chosen or running or self.loading or self.chunked):
            self._untangle(chosen, budget, now_ns)

    def _untangle(self, chosen: list[tuple[Sequence, int]], budget: PrefillBudget, now_ns: int) -> None:
        """Resolves a deadlock, in which no sequence runs and the scheduler can admit no sequence: the last waiting
        sequence that holds loaded KV cache loses it."""
        holding = [sequence for sequence in self.waiting if self._cache.holds(sequence)]
        if len(holding) > 1:
            self._cache.release(holding[-1])
            holding[-1].computed = 0
            self._admit(chosen, [], budget, now_ns)

    def _ordered(self) -> list[Sequence]:
        # SGLang sorts the queue itself: equals keep the order of the last time.
        if self._policy == "lpm":
            self.waiting = by_longest_prefix(self.waiting, lambda sequence: self._cache.match(sequence)[0])
        elif self._policy == "dfs-weight":
            self.waiting = by_subtree_weight(self.waiting, lambda sequence: self._cache.match(sequence)[1])
        return list(self.waiting)

    def _take_in(
        self, sequence: Sequence, budget: PrefillBudget, going: list[Sequence], others: bool, now_ns: int
    ) -> tuple[int | None, bool]:
        """Tokens of its first chunk (0: not in this batch; None: the pool is too full), and whether it was set aside to
        load KV cache."""
        cache, external = self._cache, self._external
        loaded = cache.holds(sequence)
        local = sequence.computed if loaded else cache.hold(sequence)
        rest, matched, aside = sequence.length - local, 0, False
        if external is not None and not loaded:
            matched = external.matched(sequence, local, now_ns)
            aside = matched > 0 or (external.prefilled and sequence.prompt_length == local + 1)
        new_tokens = min(max(sequence.max_tokens - sequence.generated, 0), MOST_NEW_TOKENS)
        enough = rest + new_tokens + cache.page_size < budget.pool
        fits = enough if cache.enabled else budget.lasts(sequence, rest, going)
        tokens = budget.fit(local, rest, others and cache.enabled) if fits and not aside else 0
        if not (fits and (tokens or aside)):
            if not loaded:
                cache.release(sequence)
            return (0 if fits else None), False
        if not loaded:
            sequence.computed = local
            looked_up = None if external is None else matched
            self._counters.observe_lookup(sequence, local if cache.enabled else None, looked_up)
        if external is not None and aside:
            self._load(external, sequence, local, matched, now_ns)
            return 0, True
        budget.charge(tokens, min(sequence.max_tokens, MOST_NEW_TOKENS) if tokens == rest else 0)
        return tokens, False

    def _load(self, external: ExternalKv, sequence: Sequence, local: int, matched: int, now_ns: int) -> None:
        if not self._cache.allocate(sequence, local + matched):
            raise RuntimeError(f"no KV cache to load {matched} tokens of sequence {sequence.id} into")
        sequence.computed = local + matched
        self.loading.append((external.load(sequence, local, matched, now_ns), sequence))
