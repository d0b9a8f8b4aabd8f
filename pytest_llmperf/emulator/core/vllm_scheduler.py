"""vLLM's V1 scheduler (0.32): running sequences first, then waiting ones, within the token budget of a step."""

from __future__ import annotations

from pytest_llmperf.emulator.core.batch import Batch
from pytest_llmperf.emulator.core.scheduler_state import VllmState
from pytest_llmperf.emulator.core.sequence import Sequence


class VllmScheduler(VllmState):
    """First come, first served.

    A step computes for each running sequence the next chunk of its prompt, or its last token with the drafts after it.
    If the pool has no free blocks, the scheduler preempts the sequence that was admitted last: the sequence loses its
    blocks and goes to the front of the queue. A step with a preemption admits no sequence.

    With asynchronous scheduling the scheduler forms a batch while the previous batch computes. Tokens that the previous
    batch will generate count as `expected`. A sequence whose last token is in flight keeps its place and its blocks for
    one more batch.
    """

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
