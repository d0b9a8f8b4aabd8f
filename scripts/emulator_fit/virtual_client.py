"""A client in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from pytest_llmperf.emulator.core.engine import FastForward, Step
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.virtual.send_schedule import Plan, Request, SendSchedule

__all__ = ["Answer", "Plan", "Request", "replay"]


@dataclass(slots=True)
class Answer:
    """What became of a request; all times on the deployment's clock.

    Args:
        index: of the request.
        intended_ns, sent_ns: when it was to go, and went.
        token_ns, token_counts: when tokens came, and how many at once.
        ended_ns: when it was over; None: never (the server is stuck).
        prompt_tokens, cached_tokens, output_tokens: as the server's usage has them.
        refusal: why the server did not take it.
    """

    index: int
    intended_ns: int
    sent_ns: int
    token_ns: list[int]
    token_counts: list[int]
    ended_ns: int | None
    prompt_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    refusal: str | None = None


class Server(Protocol):
    """A cluster.deployment.Deployment."""

    now_ns: int

    def ingress_ns(self, prompt_tokens: int) -> int: ...

    def submit(self, sequence: Sequence, now_ns: int) -> None: ...

    def advance(self, until_ns: int | None) -> Step | FastForward | None: ...


def replay(deployment: Server, plan: Plan) -> list[Answer]:
    """Sends a plan from the deployment's present time on; answers by index."""
    return _Replay(deployment, plan).run()


class _Replay:
    def __init__(self, deployment: Server, plan: Plan) -> None:
        self._deployment = deployment
        self._send_schedule = SendSchedule(plan, deployment.now_ns)
        self._unfinished = len(plan.requests)
        self._arrivals: list[tuple[int, int, Sequence]] = []
        self._answers: dict[int, Answer] = {}
        self._open: dict[Sequence, Answer] = {}

    def run(self) -> list[Answer]:
        advance = self._deployment.advance
        while self._unfinished:
            for request, intended_ns in self._send_schedule.take_timed():
                self._send(request, intended_ns, intended_ns)
            until_ns = self._next_ns()
            done = advance(until_ns)
            if done is not None:
                self._receive(done)
            elif until_ns is None:
                break
            else:
                for request, intended_ns in self._send_schedule.take_due(until_ns):
                    self._send(request, intended_ns, until_ns)
                self._arrive(until_ns)
        return [self._answers[index] for index in sorted(self._answers)]

    def _next_ns(self) -> int | None:
        """When something next happens at the client's side or reaches the server."""
        send_ns = self._send_schedule.next_ns
        if not self._arrivals:
            return send_ns
        arrives_ns = self._arrivals[0][0]
        return arrives_ns if send_ns is None or arrives_ns < send_ns else send_ns

    def _send(self, request: Request, intended_ns: int, sent_ns: int) -> None:
        prompt = request.prompt
        arrived_ns = sent_ns + self._deployment.ingress_ns(len(prompt))
        sequence = Sequence(request.index, prompt, request.max_tokens, arrived_ns, request.salt)
        answer = Answer(request.index, intended_ns, sent_ns, [], [], None, len(prompt))
        self._answers[request.index] = self._open[sequence] = answer
        heappush(self._arrivals, (arrived_ns, request.index, sequence))

    def _arrive(self, now_ns: int) -> None:
        """What reaches the server now."""
        while self._arrivals and self._arrivals[0][0] <= now_ns:
            arrived_ns, _, sequence = heappop(self._arrivals)
            try:
                self._deployment.submit(sequence, arrived_ns)
            except ValueError as refusal:
                self._open[sequence].refusal = str(refusal)
                self._end(sequence, arrived_ns)

    def _receive(self, done: Step | FastForward) -> None:
        answers = self._open
        if isinstance(done, FastForward):
            ends_ns = done.ends_ns
            ones = [1] * len(ends_ns)
            for sequence in done.sequences:
                answer = answers[sequence]
                answer.token_ns += ends_ns
                answer.token_counts += ones
        else:
            for sequence, count in done.tokens:
                answer = answers[sequence]
                answer.token_ns.append(done.ended_ns)
                answer.token_counts.append(count)
        ended_ns = done.ended_ns
        for sequence in done.finished:
            self._end(sequence, ended_ns)

    def _end(self, sequence: Sequence, ended_ns: int) -> None:
        answer = self._open.pop(sequence)
        answer.ended_ns = ended_ns
        answer.cached_tokens = sequence.cached_tokens or 0
        answer.output_tokens = sequence.generated
        self._unfinished -= 1
        self._send_schedule.ended(answer.index, ended_ns)
