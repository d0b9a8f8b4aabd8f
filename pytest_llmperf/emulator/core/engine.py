"""One engine: runs the scheduler's steps and gives tokens to sequences, at times that the caller passes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pytest_llmperf.emulator.core.batch import Batch, End
from pytest_llmperf.emulator.core.counters import Counters, Gauges
from pytest_llmperf.emulator.core.scheduler import Scheduler
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.cost.step_time import StepLoad, StepTime
from pytest_llmperf.emulator.noise import Disturbance

_DRAWN_STEPS = 512  # steps whose disturbance is asked for at once


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Args:
        started_ns, ended_ns: on the caller's clock.
        tokens: how many tokens each sequence gets at `ended_ns`.
        finished: those that end with that.
    """

    started_ns: int
    ended_ns: int
    tokens: list[tuple[Sequence, int]]
    finished: list[Sequence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FastForward:
    """Steps in a row in each of which the same sequences get one token each.

    Args:
        started_ns: of the first step.
        ends_ns: when each step ended and gave out its tokens.
        sequences: who got them.
        finished: those that end with the last step.
    """

    started_ns: int
    ends_ns: list[int]
    sequences: list[Sequence]
    finished: list[Sequence]

    @property
    def ended_ns(self) -> int:
        return self.ends_ns[-1]


class Engine:
    """Runs steps for the added sequences. The caller passes the time and starts no step before the last step has ended.

    Args:
        step_time: step-time model.
        scheduler: scheduler of vLLM or SGLang.
        disturbance: factors on the step time and stalls between steps; None for no disturbance.
    """

    def __init__(self, step_time: StepTime, scheduler: Scheduler, disturbance: Disturbance | None = None) -> None:
        self.scheduler = scheduler
        self._step_time = step_time
        self._disturbance = disturbance or Disturbance()
        self._pending: Batch | None = None
        self._first = 0
        self._factors = self._delays = np.ones(0)

    @property
    def counters(self) -> Counters:
        return self.scheduler.counters

    @property
    def gauges(self) -> Gauges:
        scheduler = self.scheduler
        return Gauges(len(scheduler.running), len(scheduler.waiting) + len(scheduler.loading), scheduler.usage)

    def add(self, sequence: Sequence, now_ns: int) -> None:
        """Queues a sequence; it can be in any step that is scheduled from now on.

        Raises:
            ValueError: the engine can never finish the sequence: it exceeds max_model_len or the KV cache.
        """
        sequence.arrived_ns = now_ns
        self.scheduler.add(sequence)

    def step(self, now_ns: int) -> Step | None:
        """Runs the next step, which starts at `now_ns`; None if no sequence can run. The scheduler state changes at
        once.
        """
        batch = self._pending or self.scheduler.schedule(now_ns)
        self._pending = None
        if batch is None:
            return None
        if self.scheduler.asynchronous:
            self._pending = self.scheduler.schedule(now_ns)
        ended_ns = now_ns + self._duration_ns(batch)
        batch.end.ns = ended_ns
        tokens, finished = self.scheduler.complete(batch, ended_ns)
        return Step(now_ns, ended_ns, tokens, finished)

    def fast_forward(self, now_ns: int, until_ns: int | None) -> FastForward | None:
        """Computes at once all following steps that only decode and that start before `until_ns`.

        The result equals that of repeated calls of `step`. None if the next step does more than decode.
        """
        scheduler = self.scheduler
        steps, kv_tokens = scheduler.steady(self._pending)
        if not steps:
            return None
        wake_ns = scheduler.wake_ns()
        if wake_ns is not None and (until_ns is None or wake_ns < until_ns):
            until_ns = wake_ns
        if until_ns is not None and until_ns <= now_ns:
            return None
        sequences = list(scheduler.running)
        ends = np.cumsum(self._durations_ns(steps, len(sequences), kv_tokens))
        ends += now_ns
        if until_ns is not None and ends[-1] >= until_ns:
            steps = min(steps, int(ends.searchsorted(until_ns)) + 1)
            ends = ends[:steps]
        ends_ns = ends.tolist()
        if self._pending is not None:  # it is the first of these steps, and then stands for the one after the last
            self._pending.end.ns, self._pending.end = ends_ns[0], End()
        finished = scheduler.advance_steps(steps, ends_ns[-1])
        if self._pending is not None and not self._pending.rows:
            self._pending = None
        self.counters.steps += steps
        return FastForward(now_ns, ends_ns, sequences, finished)

    def no_sequence_ends_before_ns(self, now_ns: int) -> int:
        """The time before which no sequence ends, if the next step begins now and nothing is added or aborted."""
        scheduler = self.scheduler
        steps, kv_tokens = scheduler.steady(self._pending)
        if not steps:
            return now_ns + 1
        ends_ns = now_ns + int(self._durations_ns(steps, len(scheduler.running), kv_tokens).sum())
        wake_ns = scheduler.wake_ns()
        return ends_ns if wake_ns is None else max(now_ns + 1, min(ends_ns, wake_ns))

    def wake_ns(self, now_ns: int) -> int | None:
        """When a step can begin, not before now; None if there is nothing to do."""
        scheduler = self.scheduler
        if scheduler.running or scheduler.waiting or self._pending is not None:
            return now_ns
        ready_ns = scheduler.wake_ns()
        return None if ready_ns is None else max(now_ns, ready_ns)

    def begin_run(self, age_s: float = 0.0) -> None:
        """Draws new noise for the run of a server of this age in seconds."""
        self._disturbance.begin_run(age_s)
        self._factors = self._delays = np.ones(0)

    def _duration_ns(self, batch: Batch) -> int:
        number = self.counters.steps
        self.counters.steps = number + 1
        seconds = float(self._step_time.seconds(batch.load()))
        if batch.store_s:
            seconds += batch.store_s
        offset = self._disturbed(number, 1)
        seconds = seconds * float(self._factors[offset]) + float(self._delays[offset])
        return max(1, round(seconds * 1e9))

    def _durations_ns(self, steps: int, sequences: int, kv_tokens: int) -> npt.NDArray[np.int64]:
        number = self.counters.steps
        kv = np.arange(kv_tokens, kv_tokens + sequences * steps, sequences)
        seconds = self._step_time.seconds(StepLoad(sequences, sequences, 0, sequences, kv, kv.astype(np.float64)))
        offset = self._disturbed(number, steps)
        seconds = seconds * self._factors[offset : offset + steps] + self._delays[offset : offset + steps]
        return np.maximum(np.rint(seconds * 1e9), 1.0).astype(np.int64)

    def _disturbed(self, first: int, count: int) -> int:
        """Index of the first step's disturbance in the values that were drawn in advance; draws more values if
        needed."""
        offset = first - self._first
        if not 0 <= offset <= len(self._factors) - count:
            ahead = max(count, _DRAWN_STEPS)
            self._first, offset = first, 0
            self._factors = self._disturbance.factors(first, ahead)
            self._delays = self._disturbance.delays_s(first, ahead)
        return offset
