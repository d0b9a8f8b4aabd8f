"""An HTTP client in virtual time: it sends requests as text, meets planted faults and has timeouts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from pytest_llmperf.emulator.cluster.routing import Unreachable
from pytest_llmperf.emulator.core.engine import FastForward, Step
from pytest_llmperf.emulator.http.events import REFUSALS, UNREACHED
from pytest_llmperf.emulator.http.generation_request import checked
from pytest_llmperf.emulator.http.replies import Refusal
from pytest_llmperf.emulator.virtual.emulated_request import (
    ABANDONED,
    EmulatedRequest,
    TokenTimes,
    not_continued,
)
from pytest_llmperf.emulator.virtual.send_schedule import Posted, SendSchedule

if TYPE_CHECKING:
    from pytest_llmperf.emulator.core.sequence import Sequence
    from pytest_llmperf.emulator.faults import HttpFault
    from pytest_llmperf.emulator.http.generation_request import GenerationRequest
    from pytest_llmperf.emulator.http.service import Service


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the client waits for an answer, and after which refusals it sends a request again.

    Args:
        first_byte_ns, idle_ns, total_ns: time before the first token of an answer, between two tokens of a stream, and
            for the whole answer. Then the client closes the connection.
        retried_statuses: HTTP statuses after which the client sends a request again, up to the attempts of its POST.
    """

    first_byte_ns: int = 120_000_000_000
    idle_ns: int = 30_000_000_000
    total_ns: int = 600_000_000_000
    retried_statuses: Collection[int] = ()

    def until_ns(self, request: EmulatedRequest) -> int:
        """The time at which the client cancels the request unless more tokens arrive."""
        until_ns = min(self._silent_until_ns(request), request.sent_ns + self.total_ns)
        return until_ns if request.cancel_at_ns is None else min(until_ns, request.cancel_at_ns)

    def ending(self, request: EmulatedRequest) -> str:
        """Which limit ran out."""
        if request.cancel_at_ns == self.until_ns(request):
            return ABANDONED
        if self._silent_until_ns(request) > request.sent_ns + self.total_ns:
            return "total timeout"
        return "idle timeout" if request.streaming else "first byte timeout"

    def look_again_ns(self, request: EmulatedRequest, now_ns: int) -> int:
        """Time of the next check for a timeout. After the first token the idle limit applies, which can be earlier."""
        return min(self.until_ns(request), now_ns + max(self.idle_ns, 1))

    def _silent_until_ns(self, request: EmulatedRequest) -> int:
        return request.last_ns + self.idle_ns if request.streaming else request.sent_ns + self.first_byte_ns


#: Time from the restart of an emulated replica to its first token. An assumption, not a measurement.
RESTART_NS = 40_000_000_000


@dataclass(frozen=True, slots=True)
class ReplicaEvent:
    """The death or restart of a replica while a plan is sent.

    Args:
        restarts: whether the replica starts again, after `RESTART_NS`; otherwise it dies.
        replica: number of the replica, from 0.
        after_requests: number of requests that are sent before.
    """

    restarts: bool
    replica: int
    after_requests: int


def simulate_client(
    service: Service, posts: List[Posted], concurrency: int | None = None, patience: Patience | None = None
) -> list[EmulatedRequest]:
    """Send a plan from the present time on, and return its requests by index.

    Raises:
        ValueError: the plan cannot end.
    """
    return Client(service, posts, concurrency, patience or Patience()).run()


class Client:
    """Sends the posts of a plan from the present time on, and reads their answers.

    Args:
        service: the server.
        posts, concurrency: as of `SendSchedule`.
        patience: limits of the client.
        events: deaths and restarts of replicas on the way.

    Attributes:
        past: begin and end of each event that has ended, in ns.
    """

    def __init__(self, service: Service, posts: List[Posted], concurrency: int | None, patience: Patience,
                 events: List[ReplicaEvent] = ()) -> None:
        self._patience = patience
        self._service = service
        self._deployment = service.deployment
        self._posts = posts
        self._continued = {post.after for post in posts if post.continues}
        self._answers: dict[int, tuple[int, ...]] = {}  # prompt and answer of each turn that is continued
        self._send_schedule = SendSchedule(posts, concurrency, self._deployment.now_ns)
        self._requests: dict[int, EmulatedRequest] = {}
        # What happens to requests, in the order of events at one time: when, number of the request, and the request.
        self._events: dict[Callable[[EmulatedRequest, int], None], list[tuple[int, int, EmulatedRequest]]] = {
            self._resend: [], self._arrive: [], self._time_out: [],
        }  # fmt: skip
        self._until_token: set[int] = set()  # requests in flight that the client cancels after some tokens
        self._open: dict[Sequence, tuple[EmulatedRequest, TokenTimes]] = {}
        self._requests_with_faults = 0
        self._sent = 0
        self._due = sorted(events, key=lambda event: event.after_requests)
        self._revivals: list[tuple[int, int, int]] = []  # when a replica starts again, its number, when it was launched
        self.past: list[tuple[int, int]] = []

    def run(self) -> list[EmulatedRequest]:
        while not (self._service.ignores_disconnects and self._all_ended):  # the server goes on alone
            until_ns = self._next_ns()
            step_by_step = self._requests_with_faults or self._until_token
            done = self._deployment.advance(until_ns, fast_forwarding=not step_by_step)
            if done is not None:
                self._receive(done)
            elif until_ns is None:
                break
            else:
                self._deployment.sleep_until(until_ns)
                self._happen(until_ns)
        return [self._requests[index] for index in sorted(self._requests)]

    @property
    def _all_ended(self) -> bool:
        ended = len(self._requests) == len(self._posts)
        return ended and all(request.ended_ns is not None for request in self._requests.values())

    def _next_ns(self) -> int | None:
        """When something happens on the client's side or on the way to the server."""
        deadlines = self._events[self._time_out]
        while deadlines and deadlines[0][2].ended_ns is not None:
            heappop(deadlines)
        heaps = [heap[0][0] for heap in self._events.values() if heap] + [at_ns for at_ns, _, _ in self._revivals[:1]]
        send_ns = self._send_schedule.next_ns
        return min(heaps if send_ns is None else [send_ns, *heaps], default=None)

    def _happen(self, now_ns: int) -> None:
        while self._revivals and self._revivals[0][0] <= now_ns:
            _, replica, launched_ns = heappop(self._revivals)
            self._deployment.revive(replica)
            self.past.append((launched_ns, now_ns))
        for post, intended_ns in self._send_schedule.take_due(now_ns):
            while self._due and self._due[0].after_requests <= self._sent:
                self._disturb(self._due.pop(0), now_ns)
            self._sent += 1
            self._send(post, intended_ns, now_ns)
        for happen, heap in self._events.items():
            while heap and heap[0][0] <= now_ns:
                happen(heappop(heap)[2], now_ns)

    def _disturb(self, event: ReplicaEvent, now_ns: int) -> None:
        if event.restarts:
            heappush(self._revivals, (now_ns + RESTART_NS, event.replica, now_ns))
            return
        self.past.append((now_ns, now_ns))
        lost = dict.fromkeys(request for sequence, (request, _) in self._open.items()
                             if sequence.engine == event.replica)
        self._deployment.kill(event.replica)
        for request in lost:
            for line in request.token_times:  # the step that runs now never ends
                while line.token_ns and line.token_ns[-1] > now_ns:
                    line.token_ns.pop()
                    line.counts.pop()
            if request.tokens:
                self._give_up(request, "closed early", now_ns)
            else:
                self._requests_with_faults -= request.fault is not None
                self._abandon(request)
                self._route_again(request, now_ns)

    def _route_again(self, request: EmulatedRequest, now_ns: int) -> None:
        """The router sends a request again that reached no server, or answers with an error."""
        routing = self._deployment.routing
        if routing is None or request.sends >= routing.sends:
            request.reply = UNREACHED.reply()
            self._end(request, now_ns)
            return
        request.arrived_ns = now_ns + round(routing.pause_ns * 1.5 ** (request.sends - 1))
        request.sends += 1
        self._later(request.arrived_ns, self._arrive, request)

    def _later(self, at_ns: int, happen: Callable[[EmulatedRequest, int], None], request: EmulatedRequest) -> None:
        heappush(self._events[happen], (at_ns, request.number, request))

    def _resend(self, refused: EmulatedRequest, now_ns: int) -> None:
        """Send a refused request again, unless its client has given up meanwhile."""
        if refused.cancel_at_ns is not None and refused.cancel_at_ns <= now_ns:
            refused.reply, refused.ending = None, ABANDONED
            self._end(refused, now_ns)
        else:
            self._send(self._posts[refused.index], refused.intended_ns, now_ns, refused)

    def _send(self, post: Posted, intended_ns: int, now_ns: int, refused: EmulatedRequest | None = None) -> None:
        number = self._service.number()
        try:
            generation = self._generation(post)
        except Refusal as refusal:
            arrived_ns = now_ns + self._deployment.ingress_ns(0)
            request = EmulatedRequest(post.index, intended_ns, now_ns, arrived_ns, None, number, reply=refusal.reply())
        else:
            arrived_ns = now_ns + self._deployment.ingress_ns(generation.prompt_tokens)
            request = EmulatedRequest(post.index, intended_ns, now_ns, arrived_ns, generation, number)
            request.fault = self._service.fault_of(number, generation.max_tokens)
            if request.fault is not None and request.fault.kind in REFUSALS:
                request.reply = REFUSALS[request.fault.kind].reply()
        request.first_sent_ns, request.attempts = (
            (now_ns, 1) if refused is None else (refused.first_sent_ns, refused.attempts + 1))
        request.cancel_at_ns = None if post.after_ns is None else request.first_sent_ns + post.after_ns
        self._requests[post.index] = request
        self._later(arrived_ns, self._arrive, request)

    def _generation(self, post: Posted) -> GenerationRequest:
        """What a POST asks for. The prompt of a later turn begins with the earlier turns and their answers."""
        own = post.ask or self._service.ask(post.path, post.body)
        own = replace(own, session=post.session) if post.session else own
        if not post.continues or post.after is None:
            return own
        whole = replace(own, prompts=(self._answers[post.after] + own.prompts[0],))
        return checked(whole, self._service.launch)

    def _arrive(self, request: EmulatedRequest, _now_ns: int) -> None:
        if request.ask is None or request.reply is not None:
            post, status = self._posts[request.index], 0 if request.reply is None else request.reply.status
            if request.attempts < post.attempts and status in self._patience.retried_statuses:
                again_ns = request.arrived_ns + post.backoff_ns * 2 ** (request.attempts - 1)
                again_ns = min(again_ns, request.cancel_at_ns or again_ns)
                self._later(again_ns, self._resend, request)
                return
            self._end(request, request.arrived_ns)
            return
        if self._service.asleep:  # nothing wakes the server before the client has given up
            self._watch(request, request.arrived_ns)
            return
        self._requests_with_faults += request.fault is not None
        if self._posts[request.index].after_tokens is not None:
            self._until_token.add(request.index)
        request.token_times = [TokenTimes(s) for s in self._service.sequences(request.ask, request.arrived_ns)]
        request.unfinished = len(request.token_times)
        self._open |= {line.sequence: (request, line) for line in request.token_times}
        try:
            refusal = self._service.submit([line.sequence for line in request.token_times], request.arrived_ns)
        except Unreachable:
            self._requests_with_faults -= request.fault is not None
            self._abandon(request)
            self._route_again(request, request.arrived_ns)
            return
        if refusal is not None:
            request.reply = refusal.reply()
            self._abandon(request)
            self._end(request, request.arrived_ns)
            return
        self._watch(request, request.arrived_ns)

    def _watch(self, request: EmulatedRequest, now_ns: int) -> None:
        self._later(self._patience.look_again_ns(request, now_ns), self._time_out, request)

    def _receive(self, done: Step | FastForward) -> None:
        if isinstance(done, FastForward):
            self._receive_fast_forward(done)
        else:
            self._receive_step(done)
        for sequence in done.finished:
            self._finish(sequence, done.ended_ns)

    def _receive_fast_forward(self, skipped_steps: FastForward) -> None:
        ones = [1] * len(skipped_steps.ends_ns)
        for sequence in skipped_steps.sequences:
            open_request = self._open.get(sequence)
            if open_request is not None:
                open_request[1].token_ns += skipped_steps.ends_ns
                open_request[1].counts += ones

    def _receive_step(self, step: Step) -> None:
        for sequence, count in step.tokens:
            open_request = self._open.get(sequence)
            if open_request is None:
                continue  # its client has gone, or hears no more
            request, line = open_request
            if request.fault is not None and request.tokens + count > request.fault.after_tokens:
                self._cut(request, request.fault, step.ended_ns)
                continue
            line.token_ns.append(step.ended_ns)
            line.counts.append(count)
            if request.index in self._until_token and request.tokens >= (self._posts[request.index].after_tokens or 0):
                self._give_up(request, ABANDONED, step.ended_ns)

    def _finish(self, sequence: Sequence, now_ns: int) -> None:
        open_request = self._open.pop(sequence, None)
        if open_request is None:
            return
        request, line = open_request
        self._service.latencies.emissions(sequence, line.token_ns, line.counts)
        self._service.finished(sequence, line.token_ns[0], now_ns)
        request.unfinished -= 1
        if not request.unfinished:
            self._end(request, now_ns)

    def _cut(self, request: EmulatedRequest, fault: HttpFault, now_ns: int) -> None:
        """The planted fault strikes."""
        self._requests_with_faults -= 1
        if fault.kind == "hang":
            for line in request.token_times:
                self._open.pop(line.sequence, None)  # the engine goes on; only nobody hears of it
            return
        request.failed = fault.kind == "error"
        request.ending = "complete" if request.failed else "closed early"
        self._abandon(request)
        self._end(request, now_ns)

    def _time_out(self, request: EmulatedRequest, now_ns: int) -> None:
        """The client closes a connection on which nothing has come for too long."""
        if request.ended_ns is not None:
            return
        if self._patience.until_ns(request) > now_ns:
            self._watch(request, now_ns)
            return
        self._give_up(request, self._patience.ending(request), now_ns)

    def _give_up(self, request: EmulatedRequest, ending: str, now_ns: int) -> None:
        """The client closes the connection, so the server ends the request and frees its blocks."""
        request.ending = ending
        self._requests_with_faults -= request.fault is not None and request.fault.kind != "hang"
        self._abandon(request)
        self._end(request, now_ns)

    def _abandon(self, request: EmulatedRequest) -> None:
        for line in request.token_times:
            self._open.pop(line.sequence, None)
        self._service.drop(line.sequence for line in request.token_times)

    def _end(self, request: EmulatedRequest, now_ns: int) -> None:
        request.ended_ns = now_ns
        self._until_token.discard(request.index)
        answered = request.outcome == "ok"
        if answered and request.index in self._continued:
            sequence = request.token_times[0].sequence
            self._answers[request.index] = sequence.tokens(0, sequence.length)
        for turn in self._send_schedule.ended(request.index, now_ns, answered=answered):
            self._requests[turn.index] = not_continued(turn.index, now_ns + turn.think_ns)
