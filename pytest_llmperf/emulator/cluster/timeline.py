"""Which of several equal engines gets a request, and the steps of all engines in one order of time."""

from __future__ import annotations

from collections.abc import Sequence as List

from pytest_llmperf.emulator.core.engine import Engine, FastForward, Step
from pytest_llmperf.emulator.core.sequence import Sequence


class Timeline:
    """Engines, each with the time at which its next step can begin.

    The timeline runs the steps of all engines in the order of their start times. So the output of one engine is known
    before another engine starts a later step. A fast-forward of one engine ends before another engine can finish a
    sequence.

    Args:
        by_load: whether the least loaded engine gets a request, as in vLLM's internal data-parallel balancing (0.32),
            instead of the next engine in turn, as in SGLang.
    """

    def __init__(self, engines: List[Engine], by_load: bool = False) -> None:
        self.engines = engines
        self.in_flight = [0] * len(engines)
        self._by_load = by_load
        self._turn = 0
        self._place: dict[Sequence, int] = {}
        self._free_ns = [0] * len(engines)
        self._earliest_end_ns: list[int | None] = [None] * len(engines)
        self._stuck = [False] * len(engines)

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        """Queues a sequence at one of the engines.

        Raises:
            ValueError: see `give`.
        """
        self.give(self.route() if len(self.engines) > 1 else 0, sequence, now_ns)

    def route(self) -> int:
        """Index of the engine that gets the next sequence. Of equally loaded engines it is the next one in turn."""
        count = len(self.engines)
        turn = [(self._turn + offset) % count for offset in range(count)]
        self._turn = (self._turn + 1) % count
        return min(turn, key=self._load) if self._by_load else turn[0]

    def give(self, index: int, sequence: Sequence, now_ns: int) -> None:
        """Queues a sequence at an engine whose steps that begin before now have been run.

        Raises:
            ValueError: the engine can never finish the sequence: it exceeds max_model_len or the KV cache.
        """
        self.engines[index].add(sequence, now_ns)
        sequence.engine = index
        self._free_ns[index] = max(self._free_ns[index], now_ns)
        self._changed(index)
        self.in_flight[index] += 1
        self._place[sequence] = index

    def drop(self, sequence: Sequence) -> None:
        """Aborts a sequence; no effect where it has ended."""
        index = self._place.pop(sequence, None)
        if index is not None:
            self.engines[index].scheduler.abort(sequence)
            self.in_flight[index] -= 1
            self._changed(index)

    def next_ns(self) -> int | None:
        """When the next step begins; None if there is nothing to do."""
        starts = [start for start in map(self._start_ns, range(len(self.engines))) if start is not None]
        return min(starts, default=None)

    def advance(self, until_ns: int | None, fast_forwarding: bool) -> Step | FastForward | None:
        """Runs the next step or fast-forward that begins before `until_ns`; None if no step begins before this time."""
        event = self._advance(until_ns, fast_forwarding)
        return None if event is None else event[1]

    def _advance(self, until_ns: int | None, fast_forwarding: bool) -> tuple[int, Step | FastForward] | None:
        """The index of the engine whose step begins next, and its result."""
        while True:
            started = [(start, i) for i in range(len(self.engines)) if (start := self._start_ns(i)) is not None]
            if not started:
                return None
            start_ns, index = min(started)
            if until_ns is not None and start_ns >= until_ns:
                return None
            done = self._run(index, start_ns, until_ns, fast_forwarding)
            if done is not None:
                return index, done

    def _run(self, index: int, start_ns: int, until_ns: int | None, fast_forwarding: bool) -> Step | FastForward | None:
        engine = self.engines[index]
        done: Step | FastForward | None = None
        if fast_forwarding:
            done = engine.fast_forward(start_ns, self._no_sequence_ends_before_ns(index, until_ns))
        done = done or engine.step(start_ns)
        ready_ns = engine.scheduler.wake_ns()
        if done is None and ready_ns is not None and ready_ns <= start_ns:  # loaded in no time
            done = engine.step(start_ns)
        self._changed(index)
        if done is None:  # what waits cannot go before something is loaded, or something else happens
            self._stuck[index] = ready_ns is None or ready_ns <= start_ns
            self._free_ns[index] = max(start_ns, ready_ns or 0)
            return None
        self._free_ns[index] = done.ended_ns
        for sequence in done.finished:
            del self._place[sequence]
            self.in_flight[index] -= 1
        return done

    def _load(self, index: int) -> float:
        """Requests in flight; those that wait weigh more the fuller the KV cache is above a half."""
        gauges = self.engines[index].gauges
        return self.in_flight[index] + gauges.waiting * 6.0 * max(0.0, gauges.kv_usage - 0.5)

    def _start_ns(self, index: int) -> int | None:
        return None if self._stuck[index] else self.engines[index].wake_ns(self._free_ns[index])

    def _no_sequence_ends_before_ns(self, index: int, until_ns: int | None) -> int | None:
        """Before this time no other engine ends a sequence."""
        for other in range(len(self.engines)):
            start_ns = self._start_ns(other) if other != index else None
            if start_ns is None:
                continue
            calm_ns = self._earliest_end_ns[other]
            if calm_ns is None:
                calm_ns = self._earliest_end_ns[other] = self.engines[other].no_sequence_ends_before_ns(start_ns)
            until_ns = calm_ns if until_ns is None else min(until_ns, calm_ns)
        return until_ns

    def _changed(self, index: int) -> None:
        self._stuck[index], self._earliest_end_ns[index] = False, None
