"""Scheduler state: the sequences of an engine, their KV blocks and their counters."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmperf.emulator.config import Speculation
from pytest_llmperf.emulator.core.admission import Admission
from pytest_llmperf.emulator.core.blocks import BlockPool
from pytest_llmperf.emulator.core.counters import Counters
from pytest_llmperf.emulator.core.sequence import EndReason, Sequence

if TYPE_CHECKING:
    from pytest_llmperf.emulator.cache.external import ExternalKv
    from pytest_llmperf.emulator.config import EngineConfig
    from pytest_llmperf.emulator.core.batch import Batch


class SchedulerState:
    """Everything of vLLM's scheduler but the order of things.

    Args:
        external: KV cache outside of this engine's own.
        leaked_blocks: that each finished request keeps for ever (a planted leak).

    Raises:
        ValueError: the token budget has no room for one sequence and its drafts.
    """

    def __init__(
        self, config: EngineConfig, external: ExternalKv | None = None, leaked_blocks: int = 0
    ) -> None:
        self.counters = Counters()
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        speculation = config.speculation
        again = speculation is not None and speculation.of_target
        self.pool = BlockPool(config.num_blocks, config.block_size, config.prefix_caching, again,
                              config.answer_caching)
        self._admission = Admission(config, self.pool, self.counters, external)
        self._config = config
        self._asynchronous = config.async_scheduling
        self._external = external
        self._leaked_blocks = leaked_blocks
        self._acceptance = Acceptance(speculation) if speculation else None
        self._drafts = speculation.draft_tokens if speculation else 0
        self._lookahead = self._drafts if speculation and speculation.draft else 0
        # Of the budget, per row: a draft model of its own reads one token more.
        self._slot = 1 if self._lookahead and not again else 0
        if config.max_num_batched_tokens < 1 + self._drafts + self._slot:
            raise ValueError(
                f"max_num_batched_tokens={config.max_num_batched_tokens} is no room for one sequence and its "
                f"{self._drafts} drafts."
            )
        self.counters.spec_accepted_per_position = [0] * self._drafts
        self._in_flight: Batch | None = None
        self._settled = False

    @property
    def loading(self) -> int:
        return len(self._admission.loading)

    @property
    def usage(self) -> float:
        return self.pool.usage

    def add(self, sequence: Sequence) -> None:
        self.check(sequence)
        self.waiting.append(sequence)

    def check(self, sequence: Sequence) -> None:
        config, pool = self._config, self.pool
        if sequence.prompt_length < 1 or sequence.max_tokens < 1:
            raise ValueError("A request needs a prompt and at least one token to generate.")
        if sequence.limit > config.max_model_len:
            raise ValueError(
                f"{sequence.prompt_length} prompt tokens and {sequence.max_tokens} generated ones are more than the "
                f"maximum context length of {config.max_model_len} tokens."
            )
        slots = sequence.limit - 1 + (2 * self._drafts + self._lookahead)
        if -(-min(slots, config.max_model_len) // config.block_size) > pool.usable - len(pool.leaked):
            raise ValueError(f"{sequence.limit} tokens do not fit in {pool.usable} blocks of {config.block_size}.")
        if not config.chunked_prefill and sequence.limit - 1 > config.max_num_batched_tokens:
            raise ValueError(
                f"{sequence.limit} tokens are more than max_num_batched_tokens={config.max_num_batched_tokens}, "
                "and chunked prefill is off."
            )

    def abort(self, sequence: Sequence) -> None:
        if sequence.end is not None:
            return
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            loading = self._admission.loading
            loading[:] = [entry for entry in loading if entry[1] is not sequence]
        self.counters.finished_abort += 1
        self._free(sequence, "abort")

    def wake_ns(self) -> int | None:
        loading = self._admission.loading
        return min([ready_ns for ready_ns, _ in loading]) if loading else None

    def reset_prefix_cache(self) -> bool:
        return self.pool.reset()

    def _preempt(self, sequence: Sequence) -> None:
        in_flight = self._in_flight
        sequence.stale = in_flight is not None and any(row[0] is sequence for row in in_flight.rows)
        self.pool.release(sequence)
        sequence.computed = sequence.expected = sequence.drafts = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(sequence)

    def _accept(self, sequence: Sequence, drafts: int, blank: bool) -> int:
        """Number of tokens that a row generates for its sequence."""
        count, lag = 1, sequence.expected
        if drafts and self._acceptance is not None:
            accepted = 0 if blank else self._acceptance.draw(sequence.moment, drafts)
            self.counters.observe_drafts(drafts, accepted)
            count = min(1 + accepted, sequence.max_tokens - sequence.generated)
            if not sequence.stale:
                sequence.computed -= drafts - accepted
                lag -= (drafts - accepted) if self._asynchronous else 0
        sequence.generated += count
        if sequence.stale:
            sequence.stale = False
        elif self._asynchronous:
            lag = sequence.expected = lag - count
            if self.pool.caching:
                full = (sequence.computed - lag) // self.pool.block_size
                if full > sequence.registered:
                    self.pool.keep(sequence, full)
        return count

    def _finish(self, finished: list[Sequence], now_ns: int) -> None:
        for sequence in finished:
            sequence.ended_ns = now_ns
            if sequence.blocks:
                self.running.remove(sequence)
            else:  # preempted while its last token was in flight
                self.waiting.remove(sequence)
            self.counters.observe_end(sequence)
            self._free(sequence, "length")
            if self._leaked_blocks:
                self.pool.leak(self._leaked_blocks)

    def _free(self, sequence: Sequence, end: EndReason) -> None:
        sequence.end = end
        self.pool.release(sequence)
        if self._external is not None:
            self._external.forget(sequence)


_DRAWS = 1 << 16


class Acceptance:
    """Draws the number of accepted draft tokens of a verification.

    Position i has its own acceptance rate, conditional on the acceptance of all earlier positions.

    As with a greedy model, the accepted number depends only on the text: equal keys give equal draws on every start.
    """

    def __init__(self, speculation: Speculation) -> None:
        rates = list(speculation.acceptance[: speculation.draft_tokens])
        rates += [rates[-1] if rates else 0.0] * (speculation.draft_tokens - len(rates))
        tail = np.cumprod(rates)[::-1]  # probability of at least k, k−1, …, 1 accepted drafts; ascending
        uniform = np.random.default_rng(0x5BEC).random(_DRAWS)
        self._drawn: list[int] = (len(tail) - np.searchsorted(tail, uniform, side="right")).tolist()

    def draw(self, key: int, drafts: int) -> int:
        """Number of accepted tokens among `drafts` proposed tokens."""
        accepted = self._drawn[key % _DRAWS]
        return accepted if accepted < drafts else drafts
