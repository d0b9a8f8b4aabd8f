"""vLLM's books over stretches in which the running sequences decode and nothing else happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmperf.emulator.core import steady_decode
from pytest_llmperf.emulator.core.scheduler_state import SchedulerState
from pytest_llmperf.emulator.core.sequence import Sequence

if TYPE_CHECKING:
    from pytest_llmperf.emulator.core.batch import Batch


class FastForwardState(SchedulerState):
    """Scheduler state with fast-forward over steps in which each running sequence decodes one token and no sequence can
    join."""

    def steady(self, pending: Batch | None) -> tuple[int, int]:
        running = self.running
        count = len(running)
        if not count or self._drafts or count > self._config.max_num_batched_tokens:
            return 0, 0
        if self._asynchronous:
            if pending is None or pending.prefill_tokens or pending.unsampled:
                return 0, 0
            if not pending.tokens == len(pending.rows) == count:
                return 0, 0
            kv_tokens = pending.kv_tokens
        elif self._settled:
            kv_tokens = sum([s.computed for s in running]) + count
        else:
            return 0, 0
        steps = min([s.max_tokens - s.generated for s in running])
        if self.waiting and not self._queue_stays_blocked(steps):
            return 0, 0
        return steady_decode.steps_until_blocks_run_out(self.pool, running, steps), kv_tokens

    def advance_steps(self, steps: int, now_ns: int) -> list[Sequence]:
        running = self.running
        count = len(running)
        finished = steady_decode.advance(self.pool, running, steps, self._asynchronous)
        self.counters.generation_tokens += steps * count
        self.counters.observe_iteration(count, steps)
        if finished:
            self._finish(finished, now_ns)
        pending = self._in_flight
        if pending is not None:
            if finished:
                pending.rows = [(s, 1, 0, True) for s in self.running]
                pending.tokens = pending.sampled = len(pending.rows)
                pending.kv_tokens = sum([s.computed for s in self.running])
            else:
                pending.kv_tokens += steps * count
            pending.pairs2 = 2 * pending.kv_tokens
            pending.prefill_tokens = 0
            if not pending.rows:
                self._in_flight = None
        return finished

    def _queue_stays_blocked(self, steps: int) -> bool:
        """Whether no waiting sequence can be admitted during this many decode steps."""
        running = self.running
        if self._external is not None:
            return False
        if len(running) >= self._config.max_num_seqs:
            return True
        if len(running) == self._config.max_num_batched_tokens:
            return not self._asynchronous  # there, the batch after a sequence's last one has a token to spare
        return steady_decode.queue_head_stays_blocked(self.pool, self.waiting[0], running, steps)
