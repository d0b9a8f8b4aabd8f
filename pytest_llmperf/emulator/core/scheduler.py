"""What the schedulers of both engines have in common: queues, counters, and the life of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableSequence

import numpy as np

from pytest_llmperf.emulator.cache.external import ExternalKv
from pytest_llmperf.emulator.cache.radix import RadixCache
from pytest_llmperf.emulator.config import EngineConfig, Speculation
from pytest_llmperf.emulator.core.batch import Batch
from pytest_llmperf.emulator.core.blocks import BlockPool
from pytest_llmperf.emulator.core.counters import Counters
from pytest_llmperf.emulator.core.lookup import draft_sizes
from pytest_llmperf.emulator.core.sequence import EndReason, Sequence


class Scheduler(ABC):
    """Decides what runs in which step, and keeps the books.

    With asynchronous scheduling `schedule` is called for the next batch before `complete` for the one that computes.

    Args:
        kv: the KV cache of the engine.
        external: KV cache outside the GPU, such as LMCache.
        leaked_blocks: blocks that each finished request keeps for ever (a planted leak).

    Attributes:
        running: sequences that hold a place in the batch.
        waiting: sequences in the queue, preempted ones too.
        asynchronous: whether the next batch is scheduled while the present one computes.
        loading: sequences that are set aside while KV cache is loaded for them, each with the end of the load in ns.
    """

    running: list[Sequence]
    waiting: MutableSequence[Sequence]

    def __init__(
        self, config: EngineConfig, kv: BlockPool | RadixCache, external: ExternalKv | None, leaked_blocks: int
    ) -> None:
        speculation = config.speculation
        self.counters = Counters()
        self.loading: list[tuple[int, Sequence]] = []
        self._config = config
        self._kv = kv
        self.external = external
        self._leaked_blocks = leaked_blocks
        self._acceptance = Acceptance(speculation) if speculation else None
        self._drafts = speculation.draft_tokens if speculation else 0
        self._lookup = speculation.lookup if speculation else None
        self.asynchronous = config.async_scheduling
        self._in_flight: Batch | None = None

    @abstractmethod
    def check(self, sequence: Sequence) -> None:
        """Whether a sequence could run to its end here.

        Raises:
            ValueError: the engine can never finish the sequence: it exceeds max_model_len or the KV cache.
        """
        if sequence.prompt_length < 1 or sequence.max_tokens < 1:
            raise ValueError("A request needs a prompt and at least one token to generate.")

    @abstractmethod
    def steady(self, pending: Batch | None) -> tuple[int, int]:
        """Number of next steps that are plain decode steps, and the `kv_tokens` of the first of these steps.

        In a plain decode step every running sequence gets one token and no sequence enters or leaves; in the last one
        sequences may end. 0 means that the number is unknown.

        Args:
            pending: with asynchronous scheduling, the batch that is already scheduled.
        """

    @abstractmethod
    def _form(self, batch: Batch, now_ns: int) -> None:
        """Adds the rows of the next batch."""

    @abstractmethod
    def _accept(self, sequence: Sequence, drafts: int, sampling: bool, batch: Batch) -> int:
        """Number of tokens that a computed row generates for its sequence."""

    @abstractmethod
    def _discard(self, sequence: Sequence) -> None:
        """Takes a sequence out of the queue or the batch."""

    @abstractmethod
    def _decode_steps(self, steps: int) -> list[Sequence]:
        """Gives each running sequence this many tokens and memory for them. Returns those that are finished."""

    @property
    def usage(self) -> float:
        """Share of the KV cache that is held, 0 to 1."""
        return self._kv.usage

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence.

        Raises:
            ValueError: see `check`.
        """
        self.check(sequence)
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Drops a sequence wherever it is; no effect where it has ended."""
        if sequence.end is None:
            self._discard(sequence)
            self.loading[:] = [entry for entry in self.loading if entry[1] is not sequence]
            self.counters.finished_abort += 1
            self._free(sequence, "abort")

    def schedule(self, now_ns: int) -> Batch | None:
        """The next batch; None if no sequence can run now."""
        batch = Batch()
        self._form(batch, now_ns)
        if not batch.rows:
            return None
        batch.drafted = self._drafts * (len(batch.rows) - batch.unsampled)
        if self.asynchronous:
            self._in_flight = batch
        return batch

    def complete(self, batch: Batch, now_ns: int) -> tuple[list[tuple[Sequence, int]], list[Sequence]]:
        """Ends a computed batch. Returns the number of new tokens of each sequence, and the sequences that end."""
        given: list[tuple[Sequence, int]] = []
        finished: list[Sequence] = []
        total = prompts = 0
        for sequence, _, drafts, sampling in batch.rows:
            count = self._accept(sequence, drafts, sampling, batch) if sequence.end is None else 0
            if not count:
                continue
            given.append((sequence, count))
            total += count
            if sequence.first_token_ns is None:
                sequence.first_token_ns = now_ns
                prompts += self.counters.observe_prompt(sequence)
            if sequence.generated >= sequence.max_tokens:
                finished.append(sequence)
        if given:
            self.counters.generation_tokens += total
            self.counters.observe_iteration(total + prompts)
        if self._in_flight is batch:
            self._in_flight = None
        if finished:
            self._finish(finished, now_ns)
        return given, finished

    def advance_steps(self, steps: int, now_ns: int) -> list[Sequence]:
        """Updates the scheduler state and the pending batch to the end of this many decode steps. Returns the sequences
        that ended."""
        count = len(self.running)
        finished = self._decode_steps(steps)
        self.counters.generation_tokens += steps * count
        self.counters.observe_iteration(count, steps)
        if finished:
            self._finish(finished, now_ns)
        if self._in_flight is not None:
            self._in_flight.decode(self.running)
            self._in_flight = self._in_flight if self._in_flight.rows else None
        return finished

    def wake_ns(self) -> int | None:
        """Earliest time at which a sequence that loads KV cache can continue; None if no sequence loads."""
        return min([ready_ns for ready_ns, _ in self.loading]) if self.loading else None

    def reset_prefix_cache(self) -> bool:
        """Empties the prefix cache. Returns False and changes nothing while sequences hold blocks."""
        return self._kv.reset()

    def _decoding_kv_tokens(self, pending: Batch | None, settled: bool = True) -> int | None:
        """KV tokens of the next step, if each running sequence gets one token in this step."""
        running, count = self.running, len(self.running)
        if not count or self._drafts:
            return None
        if not self.asynchronous:
            return sum([s.computed for s in running]) + count if settled else None
        if pending is None or pending.prefill_tokens or pending.unsampled:
            return None
        return pending.kv_tokens if pending.tokens == len(pending.rows) == count else None

    def _enter(self, batch: Batch, sequence: Sequence, new: int, drafts: int = 0) -> None:
        """Adds a row to the batch and updates the state of its sequence."""
        computed = sequence.computed
        sequence.computed = computed + new
        sampling = computed + new >= sequence.prompt_length + sequence.generated + sequence.expected
        batch.add(sequence, new, computed, drafts, sampling)
        if self.external is not None and computed < sequence.prompt_length:
            batch.store_s += self.external.store_s(sequence, computed, computed + new, batch.end)
        if sampling:
            sequence.drafts = self._drafts
            if self.asynchronous:
                sequence.expected += 1 + drafts

    def _verify(self, sequence: Sequence, drafts: int, blank: bool = False) -> tuple[int, int]:
        """Number of tokens that a row with drafts generates, and number of rejected drafts.

        Args:
            blank: whether the drafts are padding, which is always rejected.
        """
        if not drafts or self._acceptance is None:
            return 1, 0
        accepted = 0 if blank else min(self._acceptance.draw(sequence.draw_key, drafts), self._draft_size(sequence)[1])
        self.counters.observe_drafts(drafts, accepted)
        return min(1 + accepted, sequence.max_tokens - sequence.generated), drafts - accepted

    def _draft_size(self, sequence: Sequence) -> tuple[int, int]:
        """Number of tokens drafted for the next step, and number of these that the text lets the target accept."""
        if self._lookup is None:
            return self._drafts, self._drafts
        if sequence.draft_sizes is None:
            sequence.draft_sizes = draft_sizes(sequence.prompt, self._lookup, self._drafts)
        return sequence.draft_sizes[sequence.draw_key % len(sequence.draft_sizes)]

    def _preempted(self, sequence: Sequence) -> None:
        """Counts a preemption of a sequence, which must be computed anew."""
        sequence.computed = sequence.expected = sequence.drafts = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1

    def _finish(self, finished: list[Sequence], now_ns: int) -> None:
        for sequence in finished:
            sequence.ended_ns = now_ns
            self.counters.finished_length += 1
            self._free(sequence, "length")
            self._kv.leak(self._leaked_blocks)

    def _free(self, sequence: Sequence, end: EndReason) -> None:
        sequence.end = end
        if self.external is not None:
            self.external.forget(sequence)


def most_steps(steps: int, needed: Callable[[int], int], free: int) -> int:
    """The largest number of steps, at most `steps`, for which `needed(steps)` is at most `free`."""
    if needed(steps) <= free:
        return steps
    low, high = 0, steps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= free else (low, middle)
    return low


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
