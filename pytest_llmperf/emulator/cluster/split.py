"""Disaggregated prefill: a prefill engine and a decode engine that act as one engine."""

from __future__ import annotations

from heapq import heappop, heappush

from pytest_llmperf.emulator.cluster.timeline import Timeline
from pytest_llmperf.emulator.cluster.transfer import TransferredKv
from pytest_llmperf.emulator.core.engine import FastForward, Step
from pytest_llmperf.emulator.core.sequence import Sequence

PREFILL, DECODE = 0, 1


class Split:
    """Disaggregated prefill by the rules of vLLM's proxies.

    The prefill engine computes the prompt and one token (max_tokens = 1). Then the decode engine gets the request,
    pulls the KV cache over the link and samples all tokens of the client, including the first token, because the proxy
    drops the token of the prefill engine. So the time to first token contains the transfer and a decode step after the
    prefill. SGLang's decode engine forwards the token of the prefill engine and saves that decode step.

    The blocks of the prefill engine are free after its step, even if the decode engine has not pulled them yet.

    Args:
        timeline: timeline of a prefill engine and a decode engine.
        handed: external KV cache of the decode engine.
    """

    def __init__(self, timeline: Timeline, handed: TransferredKv) -> None:
        self._timeline = timeline
        self._handed = handed
        self._prompts: dict[Sequence, Sequence] = {}  # what the prefill engine computes, and for whom
        self._handovers: list[tuple[int, int, Sequence, Sequence]] = []
        self._number = 0
        self._cached_tokens: dict[Sequence, int] = {}

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        prompt = Sequence(sequence.id, sequence.prompt, 1, now_ns, sequence.salt)
        self._timeline.engines[DECODE].scheduler.check(sequence)
        self._timeline.give(PREFILL, prompt, now_ns)
        sequence.arrived_ns = now_ns
        self._prompts[prompt] = sequence

    def abort(self, sequence: Sequence) -> None:
        for prompt in [p for p, s in self._prompts.items() if s is sequence]:
            del self._prompts[prompt]
            self._timeline.drop(prompt)
            sequence.end = "abort"
        self._timeline.drop(sequence)
        self._cached_tokens.pop(sequence, None)

    def next_ns(self) -> int | None:
        starts = [self._timeline.next_ns(), self._handovers[0][0] if self._handovers else None]
        return min((start for start in starts if start is not None), default=None)

    def advance(self, until_ns: int | None, fast_forwarding: bool) -> Step | FastForward | None:
        while True:
            handover_ns = self._handovers[0][0] if self._handovers else None
            limits = [limit for limit in (until_ns, handover_ns) if limit is not None]
            event = self._timeline.advance(min(limits, default=None), fast_forwarding)
            if event is not None:
                index, done = event
                return self._prefilled(done) if index == PREFILL else self._decoded(done)
            if handover_ns is None or (until_ns is not None and handover_ns >= until_ns):
                return None
            self._hand_over(*heappop(self._handovers))

    def _prefilled(self, done: Step | FastForward) -> Step:
        for prompt in done.finished:
            self._number += 1
            heappush(self._handovers, (done.ended_ns, self._number, prompt, self._prompts[prompt]))
        return Step(done.started_ns, done.ended_ns, [], [])

    def _hand_over(self, now_ns: int, number: int, prompt: Sequence, sequence: Sequence) -> None:
        del number
        if self._prompts.pop(prompt, None) is None:
            return
        arrived_ns, sequence.first_scheduled_ns = sequence.arrived_ns, prompt.first_scheduled_ns
        self._cached_tokens[sequence] = prompt.cached_tokens or 0
        self._handed.offer(sequence)
        self._timeline.give(DECODE, sequence, now_ns)
        sequence.arrived_ns = arrived_ns

    def _decoded(self, done: Step | FastForward) -> Step | FastForward:
        """Reports the cached tokens of the prefill engine to the client, not the transferred tokens."""
        for sequence in done.finished:
            sequence.cached_tokens = self._cached_tokens.pop(sequence, 0)
        return done
