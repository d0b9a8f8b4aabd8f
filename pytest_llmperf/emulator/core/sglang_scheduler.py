"""SGLang's scheduling rules as of 0.5.15. The docstrings name the relevant differences of 0.5.23."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmperf.emulator.cache.radix import RadixCache
from pytest_llmperf.emulator.core.batch import Batch
from pytest_llmperf.emulator.core.counters import Counters
from pytest_llmperf.emulator.core.scheduler_state import Acceptance
from pytest_llmperf.emulator.core.sequence import EndReason, Sequence
from pytest_llmperf.emulator.core.sglang_policy import NewTokenRatio
from pytest_llmperf.emulator.core.sglang_prefill import PrefillQueue

if TYPE_CHECKING:
    from pytest_llmperf.emulator.cache.external import ExternalKv
    from pytest_llmperf.emulator.config import EngineConfig

RETRACT_STEPS = 20


class SglangScheduler:
    """Prefill first: as long as anything can be admitted the step is a prefill of at most a chunk of tokens, and the
    running sequences wait; otherwise all of them decode. With mixed_chunk they decode along with the prefill.

    Who is admitted: see PrefillQueue. Where the pool lacks room for a decode step, sequences with the fewest output
    tokens (of equals, the longest prompt; with drafts, the latest) are retracted until the rest fits: they lose all
    their KV cache and queue up at the end.

    With asynchronous scheduling (SGLang's overlap) a batch is scheduled while the one before computes. A sequence whose
    last token is in flight has no row any more (as in 0.5.23) but keeps its place and memory for that one batch.
    Speculation is played without overlap.

    Args:
        external: KV cache outside of this engine's own.
        leaked_blocks: pages that each finished request keeps for ever (a planted leak).
    """

    def __init__(
        self,
        config: EngineConfig,
        external: ExternalKv | None = None,
        leaked_blocks: int = 0,
    ) -> None:
        self.counters = Counters()
        self.cache = RadixCache(config.num_blocks * config.block_size, config.block_size, config.prefix_caching,
                                config.answer_caching)
        self.ratio = NewTokenRatio(config.conservativeness)
        self._config = config
        self._external = external
        self._leaked_blocks = leaked_blocks
        self._acceptance = Acceptance(config.speculation) if config.speculation else None
        self._drafts = config.speculation.draft_tokens if config.speculation else 0
        self.counters.spec_accepted_per_position = [0] * self._drafts
        self._asynchronous = config.async_scheduling and not self._drafts
        self._running: list[Sequence] = []
        self._joining: list[Sequence] = []  # prefilled by the batch before, running from the next one on
        self._fresh: set[Sequence] = set()  # whose prompt is not in the tree yet
        self._in_flight: Batch | None = None
        self._queue = PrefillQueue(config, self.cache, self.counters, external)

    @property
    def waiting(self) -> list[Sequence]:
        return self._queue.waiting

    @property
    def loading(self) -> int:
        return len(self._queue.loading)

    @property
    def running(self) -> list[Sequence]:
        chunked = self._queue.chunked
        if chunked is None and not self._joining:
            return self._running
        return self._running + self._joining + ([chunked] if chunked is not None else [])

    @property
    def usage(self) -> float:
        return self.cache.usage

    def add(self, sequence: Sequence) -> None:
        self.check(sequence)
        self.waiting.append(sequence)

    def check(self, sequence: Sequence) -> None:
        config = self._config
        if sequence.prompt_length < 1 or sequence.max_tokens < 1:
            raise ValueError("A request needs a prompt and at least one token to generate.")
        most = min(config.max_model_len, self.cache.capacity - 2 * self.cache.page_size - self._drafts)
        if sequence.limit > most:
            raise ValueError(
                f"{sequence.prompt_length} prompt tokens and {sequence.max_tokens} generated ones are more than the "
                f"{most} tokens that one request can have."
            )

    def abort(self, sequence: Sequence) -> None:
        if sequence.end is not None:
            return
        self._queue.discard(sequence)
        for group in (self._running, self._joining):
            if sequence in group:
                group.remove(sequence)
        self.counters.finished_abort += 1
        self._free(sequence, "abort", sequence.length - 1 if sequence.generated else None)

    def schedule(self, now_ns: int) -> Batch | None:
        self._running += self._joining
        self._joining = []
        if self._queue.chunked is not None:
            self.cache.keep(self._queue.chunked, self._queue.chunked.computed)
        batch = Batch()
        self._prefill(batch, now_ns)
        if not batch.rows:
            self._decode(batch)
        elif self._config.mixed_chunk and self._make_room_to_decode(self._running):
            self._enter_decoding(batch)
        if not batch.rows:
            return None
        batch.drafted = self._drafts * (len(batch.rows) - batch.unsampled)
        if self._asynchronous:
            self._in_flight = batch
        return batch

    def complete(self, batch: Batch, now_ns: int) -> tuple[list[tuple[Sequence, int]], list[Sequence]]:
        given: list[tuple[Sequence, int]] = []
        finished: list[Sequence] = []
        prompts = 0
        for sequence, _, drafts, sampling in batch.rows:
            if sequence.end is not None or not sampling:
                continue
            if sequence.stale:
                sequence.stale = False
                continue
            if sequence in self._fresh:
                self._fresh.discard(sequence)
                self.cache.keep(sequence, sequence.length)
            count = self._accept(sequence, drafts)
            given.append((sequence, count))
            if sequence.first_token_ns is None:
                sequence.first_token_ns = now_ns
                prompts += self.counters.observe_prompt(sequence)
            if sequence.finished:
                finished.append(sequence)
        if given:
            total = sum(count for _, count in given)
            self.counters.generation_tokens += total
            self.counters.observe_iteration(total + prompts)
        if self._in_flight is batch:
            self._in_flight = None
        self._finish(finished, now_ns)
        return given, finished

    def steady(self, pending: Batch | None) -> tuple[int, int]:
        running, count = self._running, len(self._running)
        if not count or self._drafts or self._fresh or self._joining:
            return 0, 0
        if self._queue.chunked is not None or (self.waiting and not self._queue.full):
            return 0, 0
        if self._asynchronous:
            if pending is None or pending.unsampled or pending.tokens != count or len(pending.rows) != count:
                return 0, 0
            kv_tokens = pending.kv_tokens
        else:
            kv_tokens = sum([s.computed for s in running]) + count
        low, high = 0, min([s.max_tokens - s.generated for s in running]) + 1
        available = self.cache.free
        if self._needed(high - 1) <= available:
            return high - 1, kv_tokens
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._needed(middle) <= available else (low, middle)
        return low, kv_tokens

    def advance_steps(self, steps: int, now_ns: int) -> list[Sequence]:
        running, cache = self._running, self.cache
        cache.make_room(self._needed(steps))
        for sequence in running:
            sequence.generated += steps
            sequence.computed = min(sequence.computed + steps, sequence.limit - 1)
            cache.allocate(sequence, sequence.computed)
        self.ratio.decay(steps)
        self.counters.generation_tokens += steps * len(running)
        self.counters.observe_iteration(len(running), steps)
        finished = [s for s in running if s.finished]
        staying = [s for s in running if not s.finished]
        if self._in_flight is not None:
            self._in_flight.rows = [(s, 1, 0, True) for s in staying]
            self._in_flight.tokens = self._in_flight.sampled = len(staying)
            self._in_flight.kv_tokens = sum([s.computed for s in staying])
            self._in_flight.pairs2 = 2 * self._in_flight.kv_tokens
            self._in_flight.prefill_tokens = 0
            self._in_flight = self._in_flight if staying else None
        self._finish(finished, now_ns)
        return finished

    def wake_ns(self) -> int | None:
        loading = self._queue.loading
        return min([ready_ns for ready_ns, _ in loading]) if loading else None

    def reset_prefix_cache(self) -> bool:
        return not (self.waiting or self._queue.loading) and self.cache.reset()

    def _needed(self, steps: int) -> int:
        needed = self.cache.needed
        return sum([needed(s, min(s.computed + steps, s.limit - 1)) for s in self._running])

    def _accept(self, sequence: Sequence, drafts: int) -> int:
        """Number of tokens that a row generates for its sequence."""
        count = 1
        if drafts and self._acceptance is not None:
            accepted = self._acceptance.draw(sequence.moment, drafts)
            self.counters.observe_drafts(drafts, accepted)
            sequence.computed -= drafts - accepted
            count = min(1 + accepted, sequence.max_tokens - sequence.generated)
        sequence.generated += count
        if self._asynchronous:
            sequence.expected -= count
        return count

    def _finish(self, finished: list[Sequence], now_ns: int) -> None:
        for sequence in finished:
            sequence.ended_ns = now_ns
            self.counters.observe_end(sequence)
            self._free(sequence, "length", sequence.length - 1)
            self.cache.leak(self._leaked_blocks * self.cache.page_size)
        if finished:
            self._running = [s for s in self._running if s.end is None]
            self._joining = [s for s in self._joining if s.end is None]
            self._queue.full = False
            if not (self.running or self.waiting):
                self.ratio.reset()

    def _free(self, sequence: Sequence, end: EndReason, computed: int | None) -> None:
        sequence.end = end
        self._fresh.discard(sequence)
        if self.cache.holds(sequence):
            self.cache.release(sequence, computed)
        if self._external is not None:
            self._external.forget(sequence)

    def _enter(self, batch: Batch, sequence: Sequence, new: int, drafts: int = 0) -> None:
        """Adds a row to the batch, allocates its memory and updates the state of its sequence."""
        computed = sequence.computed
        if not self.cache.allocate(sequence, computed + new):
            raise RuntimeError(f"sequence {sequence.id} was scheduled without KV cache for {new} tokens")
        sequence.computed = computed + new
        sampling = computed + new >= sequence.length + sequence.expected
        batch.add(sequence, new, computed, drafts, sampling)
        if self._external is not None and computed < sequence.prompt_length:
            batch.store_s += self._external.store_s(sequence, computed, computed + new, batch.end)
        if sampling and self._asynchronous:
            sequence.expected += 1

    def _prefill(self, batch: Batch, now_ns: int) -> None:
        if self._queue.loading:
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
        sequence.computed = sequence.expected = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.append(sequence)
