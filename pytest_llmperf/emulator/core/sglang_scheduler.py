"""SGLang's scheduling rules as of 0.5.15. The docstrings name the relevant differences of 0.5.23."""

from __future__ import annotations

from pytest_llmperf.emulator.cache.external import ExternalKv
from pytest_llmperf.emulator.cache.radix import RadixCache
from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.core.batch import Batch
from pytest_llmperf.emulator.core.scheduler import Scheduler, most_steps
from pytest_llmperf.emulator.core.sequence import EndReason, Sequence
from pytest_llmperf.emulator.core.sglang_policy import NewTokenRatio
from pytest_llmperf.emulator.core.sglang_prefill import PrefillQueue

RETRACT_STEPS = 20


class SglangScheduler(Scheduler):
    """Prefill first: as long as anything can be admitted the step is a prefill of at most a chunk of tokens, and the
    running sequences wait; otherwise all of them decode. With mixed_chunk they decode along with the prefill.

    Who is admitted: see PrefillQueue. Where the pool lacks room for a decode step, sequences with the fewest output
    tokens (of equals, the longest prompt; with drafts, the latest) are retracted until the rest fits: they lose all
    their KV cache and queue up at the end.

    With asynchronous scheduling (SGLang's overlap) a batch is scheduled while the one before computes. A sequence whose
    last token is in flight has no row any more (as in 0.5.23) but keeps its place and memory for that one batch.
    Speculation is played without overlap.

    Args:
        external: KV cache outside the GPU, such as LMCache.
        leaked_blocks: pages that each finished request keeps for ever (a planted leak).
    """

    def __init__(
        self,
        config: EngineConfig,
        external: ExternalKv | None = None,
        leaked_blocks: int = 0,
    ) -> None:
        self.cache = RadixCache(config.num_blocks * config.block_size, config.block_size, config.prefix_caching,
                                config.answer_caching)
        super().__init__(config, self.cache, external, leaked_blocks)
        self.asynchronous &= not self._drafts
        self.ratio = NewTokenRatio(config.conservativeness)
        self._running: list[Sequence] = []
        self._joining: list[Sequence] = []  # prefilled by the batch before, running from the next one on
        self._fresh: set[Sequence] = set()  # whose prompt is not in the tree yet
        self._queue = PrefillQueue(config, self.cache, self.counters, self.loading, external)

    @property
    def waiting(self) -> list[Sequence]:  # type: ignore[override]
        return self._queue.waiting

    @property
    def running(self) -> list[Sequence]:  # type: ignore[override]
        chunked = self._queue.chunked
        if chunked is None and not self._joining:
            return self._running
        return self._running + self._joining + ([chunked] if chunked is not None else [])

    def check(self, sequence: Sequence) -> None:
        super().check(sequence)
        most = min(self._config.max_model_len, self.cache.capacity - 2 * self.cache.page_size - self._drafts)
        if sequence.limit > most:
            raise ValueError(
                f"{sequence.prompt_length} prompt tokens and {sequence.max_tokens} generated ones are more than the "
                f"{most} tokens that one request can have."
            )

    def steady(self, pending: Batch | None) -> tuple[int, int]:
        queue = self._queue
        if self._fresh or self._joining or queue.chunked is not None or (self.waiting and not queue.full):
            return 0, 0
        kv_tokens = self._decoding_kv_tokens(pending)
        if kv_tokens is None:
            return 0, 0
        longest = min([s.max_tokens - s.generated for s in self._running])
        return most_steps(longest, self._needed, self.cache.free), kv_tokens

    def reset_prefix_cache(self) -> bool:
        return not (self.waiting or self.loading) and super().reset_prefix_cache()

    def _form(self, batch: Batch, now_ns: int) -> None:
        self._running += self._joining
        self._joining = []
        if self._queue.chunked is not None:
            self.cache.keep(self._queue.chunked, self._queue.chunked.computed)
        self._prefill(batch, now_ns)
        if not batch.rows:
            self._decode(batch)
        elif self._config.mixed_chunk and self._make_room_to_decode(self._running):
            self._enter_decoding(batch)

    def _decode_steps(self, steps: int) -> list[Sequence]:
        cache = self.cache
        cache.make_room(self._needed(steps))
        for sequence in self._running:
            sequence.generated += steps
            sequence.computed = min(sequence.computed + steps, sequence.limit - 1)
            cache.allocate(sequence, sequence.computed)
        self.ratio.decay(steps)
        return [s for s in self._running if s.finished]

    def _needed(self, steps: int) -> int:
        needed = self.cache.needed
        return sum([needed(s, min(s.computed + steps, s.limit - 1)) for s in self._running])

    def _accept(self, sequence: Sequence, drafts: int, sampling: bool, batch: Batch) -> int:  # noqa: ARG002
        if not sampling or sequence.stale:
            sequence.stale &= not sampling
            return 0
        if sequence in self._fresh:
            self._fresh.discard(sequence)
            self.cache.keep(sequence, sequence.length)
        count, rejected = self._verify(sequence, drafts)
        sequence.computed -= rejected
        sequence.generated += count
        if self.asynchronous:
            sequence.expected -= count
        return count

    def _discard(self, sequence: Sequence) -> None:
        self._queue.discard(sequence)
        for group in (self._running, self._joining):
            if sequence in group:
                group.remove(sequence)

    def _finish(self, finished: list[Sequence], now_ns: int) -> None:
        super()._finish(finished, now_ns)
        self._running = [s for s in self._running if s.end is None]
        self._joining = [s for s in self._joining if s.end is None]
        self._queue.full = False
        if not (self.running or self.waiting):
            self.ratio.reset()

    def _free(self, sequence: Sequence, end: EndReason) -> None:
        super()._free(sequence, end)
        self._fresh.discard(sequence)
        if self.cache.holds(sequence):
            self.cache.release(sequence, sequence.length - 1 if sequence.generated else None)

    def _enter(self, batch: Batch, sequence: Sequence, new: int, drafts: int = 0) -> None:
        if not self.cache.allocate(sequence, sequence.computed + new):
            raise RuntimeError(f"sequence {sequence.id} was scheduled without KV cache for {new} tokens")
        super()._enter(batch, sequence, new, drafts)

    def _prefill(self, batch: Batch, now_ns: int) -> None:
        if self.loading:
            for sequence in self._queue.take_up_loaded(now_ns, self._config.max_num_seqs - len(self.running)):
                self._fresh.add(sequence)
                self._running.append(sequence)
        for sequence, tokens in self._queue.choose(self._running, self.ratio.current, now_ns):
            if sequence.first_scheduled_ns is None:
                sequence.first_scheduled_ns = now_ns
            self._enter(batch, sequence, tokens)
            if sequence.computed == sequence.length:
                self._joining.append(sequence)
                self._fresh.add(sequence)

    def _decode(self, batch: Batch) -> None:
        if not self._running:
            return
        if self._make_room_to_decode(self._running):
            self.ratio.decay()
        else:
            self._retract()
        self._enter_decoding(batch)

    def _enter_decoding(self, batch: Batch) -> None:
        for sequence in self._running:
            if sequence.generated + sequence.expected < sequence.max_tokens:
                self._enter(batch, sequence, 1 + self._drafts, self._drafts)

    def _make_room_to_decode(self, sequences: list[Sequence]) -> bool:
        new = 1 + self._drafts
        rows = [s for s in sequences if s.generated + s.expected < s.max_tokens]
        return self.cache.make_room(sum([self.cache.needed(s, s.computed + new) for s in rows]))

    def _retract(self) -> None:
        rest = list(self._running)
        if not self._drafts:  # with drafts the latest goes first: 0.5.15 can take requests from the back alone
            rest.sort(key=lambda s: (s.generated, -s.prompt_length), reverse=True)
        first = True
        while len(rest) > 1 and (first or not self._make_room_to_decode(rest)):
            first = False
            self._evict_sequence(rest.pop())
            self.cache.make_room(min(len(rest) * RETRACT_STEPS, self.cache.free))
        if rest and not self._make_room_to_decode(rest):  # those that are still prefilling or loading hold the rest
            self._evict_sequence(rest.pop())
        staying = set(rest)
        self._running = [sequence for sequence in self._running if sequence in staying]
        self.ratio.after_retraction(self._running)
        self._queue.full = False

    def _evict_sequence(self, sequence: Sequence) -> None:
        sequence.stale = sequence.expected > 0
        self._fresh.discard(sequence)
        self.cache.release(sequence, None)
        self._preempted(sequence)
        self.waiting.append(sequence)
