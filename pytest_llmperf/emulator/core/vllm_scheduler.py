"""vLLM's V1 scheduler (0.32): running sequences first, then waiting ones, within the token budget of a step."""

from __future__ import annotations

from collections import deque

from pytest_llmperf.emulator.cache.external import ExternalKv
from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.core import steady_decode
from pytest_llmperf.emulator.core.admission import Admission
from pytest_llmperf.emulator.core.batch import Batch
from pytest_llmperf.emulator.core.blocks import BlockPool
from pytest_llmperf.emulator.core.scheduler import Scheduler
from pytest_llmperf.emulator.core.sequence import EndReason, Sequence


class VllmScheduler(Scheduler):
    """First come, first served.

    A step computes for each running sequence the next chunk of its prompt, or its last token with the drafts after it.
    If the pool has no free blocks, the scheduler preempts the sequence that was admitted last: the sequence loses its
    blocks and goes to the front of the queue. A step with a preemption admits no sequence.

    With asynchronous scheduling the scheduler forms a batch while the previous batch computes. Tokens that the previous
    batch will generate count as `expected`. A sequence whose last token is in flight keeps its place and its blocks for
    one more batch.

    Fast-forward goes over steps in which each running sequence decodes one token and no sequence can join.

    Args:
        external: KV cache outside the GPU, such as LMCache.
        leaked_blocks: blocks that each finished request keeps for ever (a planted leak).

    Raises:
        ValueError: the token budget has no room for one sequence and its drafts.
    """

    waiting: deque[Sequence]

    def __init__(
        self, config: EngineConfig, external: ExternalKv | None = None, leaked_blocks: int = 0
    ) -> None:
        speculation = config.speculation
        again = speculation is not None and speculation.of_target
        self.pool = BlockPool(config.num_blocks, config.block_size, config.prefix_caching, again,
                              config.answer_caching)
        super().__init__(config, self.pool, external, leaked_blocks)
        self.running = []
        self.waiting = deque()
        self._admission = Admission(config, self.pool, self.counters, self.loading, external)
        self._lookahead = self._drafts if speculation and speculation.draft else 0
        # Further tokens of the budget per row: a separate draft model reads one token more.
        self._slot = 1 if self._lookahead and not again else 0
        if config.max_num_batched_tokens < 1 + self._drafts + self._slot:
            raise ValueError(
                f"max_num_batched_tokens={config.max_num_batched_tokens} is no room for one sequence and its "
                f"{self._drafts} drafts."
            )
        self._settled = False

    def check(self, sequence: Sequence) -> None:
        super().check(sequence)
        config, pool = self._config, self.pool
        if sequence.limit > config.max_model_len:
            raise ValueError(
                f"{sequence.prompt_length} prompt tokens and {sequence.max_tokens} generated ones are more than the "
                f"maximum context length of {config.max_model_len} tokens."
            )
        slots = sequence.limit - 1 + (2 * self._drafts + self._lookahead)
        if -(-min(slots, config.max_model_len) // config.block_size) > pool.usable - pool.leaked:
            raise ValueError(f"{sequence.limit} tokens do not fit in {pool.usable} blocks of {config.block_size}.")
        if not config.chunked_prefill and sequence.limit - 1 > config.max_num_batched_tokens:
            raise ValueError(
                f"{sequence.limit} tokens are more than max_num_batched_tokens={config.max_num_batched_tokens}, "
                "and chunked prefill is off."
            )

    def complete(self, batch: Batch, now_ns: int) -> tuple[list[tuple[Sequence, int]], list[Sequence]]:
        given, finished = super().complete(batch, now_ns)
        self._settled = not batch.unsampled and len(given) - len(finished) == len(self.running)
        return given, finished

    def steady(self, pending: Batch | None) -> tuple[int, int]:
        running = self.running
        kv_tokens = self._decoding_kv_tokens(pending, self._settled)
        if kv_tokens is None or len(running) > self._config.max_num_batched_tokens:
            return 0, 0
        steps = min([s.max_tokens - s.generated for s in running])
        if self.waiting and not self._queue_stays_blocked(steps):
            return 0, 0
        return steady_decode.steps_until_blocks_run_out(self.pool, running, steps), kv_tokens

    def _decode_steps(self, steps: int) -> list[Sequence]:
        return steady_decode.advance(self.pool, self.running, steps, self.asynchronous)

    def _discard(self, sequence: Sequence) -> None:
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:  # or preempted while its last token was in flight
            self.waiting.remove(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        in_flight = self._in_flight
        sequence.stale = in_flight is not None and any(row[0] is sequence for row in in_flight.rows)
        self.pool.release(sequence)
        self._preempted(sequence)
        self.waiting.appendleft(sequence)

    def _accept(self, sequence: Sequence, drafts: int, sampling: bool, batch: Batch) -> int:
        if not sampling:
            sequence.stale = False
            return 0
        count, rejected = self._verify(sequence, drafts, sequence in batch.blank) if drafts else (1, 0)
        sequence.generated += count
        if self._lookup is not None:
            sequence.drafts = self._draft_size(sequence)[0]
        if sequence.stale:
            sequence.stale = False
            return count
        sequence.computed -= rejected
        if self.asynchronous:
            lag = sequence.expected = sequence.expected - rejected - count
            if self.pool.caching:
                full = (sequence.computed - lag) // self.pool.block_size
                if full > sequence.registered:
                    self.pool.keep(sequence, full)
        return count

    def _finish(self, finished: list[Sequence], now_ns: int) -> None:
        for sequence in finished:
            self._discard(sequence)
        super()._finish(finished, now_ns)

    def _free(self, sequence: Sequence, end: EndReason) -> None:
        super()._free(sequence, end)
        self.pool.release(sequence)

    def _queue_stays_blocked(self, steps: int) -> bool:
        """Whether no waiting sequence can be admitted during this many decode steps."""
        running = self.running
        if self.external is not None:
            return False
        if len(running) >= self._config.max_num_seqs:
            return True
        if len(running) == self._config.max_num_batched_tokens:
            return not self.asynchronous  # there, the batch after a sequence's last one has a token to spare
        return steady_decode.queue_head_stays_blocked(self.pool, self.waiting[0], running, steps)

    def _form(self, batch: Batch, now_ns: int) -> None:
        while True:
            preempted = self.counters.preemptions
            budget = self._continue_running(batch)
            if preempted == self.counters.preemptions:
                if self.waiting or self.loading:
                    self._admit(batch, budget, now_ns)
                break
            if batch.rows or self._in_flight is not None:
                break
        self._settled &= not batch.rows

    def _continue_running(self, batch: Batch) -> int:
        """Adds the rows of running sequences and returns the rest of the token budget."""
        budget, longest = self._config.max_num_batched_tokens, self._config.max_model_len
        running, rows, pool = self.running, batch.rows, self.pool
        size, lookahead, caching, expects = pool.block_size, self._lookahead, pool.caching, self.asynchronous
        slot, drafting = self._slot, self._drafts > 0
        decoding = kv_tokens = index = 0
        prefilling = False
        while index < len(running) and budget > slot:
            sequence = running[index]
            index += 1
            computed, expected = sequence.computed, sequence.expected
            if expected and computed + 2 - expected >= sequence.limit:
                continue
            length = sequence.prompt_length + sequence.generated
            new = length + sequence.drafts + expected - computed
            if new != 1:
                new = min(new, budget - slot, longest - computed - 1)
                if new <= 0:
                    continue
            upto = computed + new
            if upto + lookahead > sequence.room:
                lacking = -(-min(upto + lookahead, longest) // size) - len(sequence.blocks)
                if lacking > 0:
                    if not self._make_room(lacking, sequence):
                        break
                    pool.take(sequence, lacking)
            if caching:
                full = (upto if upto < length else length) // size
                if full > sequence.registered:
                    pool.keep(sequence, full)
            budget -= new + slot
            prefilling |= drafting and not sequence.drafts
            if new == 1 and computed >= sequence.prompt_length and upto >= length + expected:
                sequence.computed = upto
                sequence.drafts = self._drafts
                if expects:
                    sequence.expected = expected + 1
                rows.append((sequence, 1, 0, True))
                kv_tokens += upto
                decoding += 1
            else:
                drafts = max(0, upto - length - expected) if sequence.drafts else 0
                self._enter(batch, sequence, new, drafts)
        batch.prefilling |= prefilling
        batch.tokens += decoding
        batch.sampled += decoding
        batch.kv_tokens += kv_tokens
        batch.pairs2 += 2 * kv_tokens
        return budget

    def _make_room(self, blocks: int, sequence: Sequence) -> bool:
        """Preempts the sequences that were admitted last until this many blocks are free. False if the given sequence
        was preempted itself."""
        while blocks > self.pool.free:
            victim = self.running.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _admit(self, batch: Batch, budget: int, now_ns: int) -> None:
        """Adds rows for waiting sequences, in order, until one cannot be admitted. Sequences whose KV cache was loaded
        come first."""
        loading, slot = self.loading, self._slot
        padded = 0 if batch.prefilling or not self._drafts else 1 + self._drafts
        alone = not batch.rows  # then a prompt of a single token is not filled up
        while budget > slot and len(self.running) < self._config.max_num_seqs:
            loaded = next((entry for entry in loading if entry[0] <= now_ns), None) if loading else None
            if loaded is not None:
                sequence = loaded[1]
                new = self._admission.resume(sequence, budget - slot, padded)
                if not new:
                    return
                loading.remove(loaded)
            else:
                if not self.waiting or self.waiting[0].stale:
                    return
                sequence = self.waiting[0]
                filled = 0 if alone and sequence.length == 1 else padded
                new, aside = self._take_in(sequence, budget - slot, filled, now_ns)
                if not new and not aside:
                    return
                self.waiting.popleft()
                if aside:
                    continue
            self.running.append(sequence)
            if sequence.first_scheduled_ns is None:
                sequence.first_scheduled_ns = now_ns
            budget -= new + slot
            drafts = max(0, sequence.computed + new - sequence.length)
            if drafts:
                batch.blank.append(sequence)
            self._enter(batch, sequence, new, drafts)

    def _take_in(self, sequence: Sequence, budget: int, padded: int, now_ns: int) -> tuple[int, bool]:
        if self.external is None:
            return self._admission.admit(sequence, budget, padded), False
        prefilling = [s for s in self.running if s.computed < s.length + s.expected]
        return self._admission.admit_or_load(sequence, budget, padded, prefilling, now_ns)
