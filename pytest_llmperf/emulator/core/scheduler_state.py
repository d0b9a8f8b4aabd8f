"""The books of vLLM's scheduler: the sequences of an engine, their KV blocks, and fast-forward over decode steps."""

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


class VllmState(Scheduler):
    """Everything of vLLM's scheduler but the order of things, with fast-forward over steps in which each running
    sequence decodes one token and no sequence can join.

    Args:
        external: KV cache outside of this engine's own.
        leaked_blocks: that each finished request keeps for ever (a planted leak).

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
        # Of the budget, per row: a draft model of its own reads one token more.
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
