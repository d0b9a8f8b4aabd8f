"""An HTTP client in virtual time: it sends requests as text, meets planted faults and has timeouts."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import replace
from heapq import heappop, heappush

from pytest_llmperf.emulator.cluster.routing import Unreachable
from pytest_llmperf.emulator.core.engine import FastForward, Step
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.faults import HttpFault
from pytest_llmperf.emulator.http.answers import REFUSALS, UNREACHED
from pytest_llmperf.emulator.http.generation_request import GenerationRequest, checked
from pytest_llmperf.emulator.http.replies import Refusal
from pytest_llmperf.emulator.http.service import Service
from pytest_llmperf.load.emulated_request import EmulatedRequest, TokenTimes, not_continued
from pytest_llmperf.load.schedule import Schedule
from pytest_llmperf.model.event import Event
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.request import RETRIED_STATUSES

#: Time from the restart of an emulated replica to its first token. An assumption, not a measurement.
RESTART_NS = 40_000_000_000


class GivenUp(Exception):
    """The replay was cancelled, so the answers are not needed."""


class Client:
    """Sends the requests of a plan from the server's present time on, and reads their answers.

    Args:
        service: the server.
        plan: what to send. Its host and port mean nothing here.
        events: deaths and restarts of replicas on the way.
        given_up: asked before each event; true ends the load.
        asks: parsed requests by index, in place of the bodies of the plan; empty: the server parses the bodies.

    Attributes:
        past: begin and end of each event that has ended, in ns.
    """

    def __init__(
        self, service: Service, plan: LoadPlan, events: List[Event] = (), given_up: Callable[[], bool] = lambda: False,
        *, asks: List[GenerationRequest] = (),
    ) -> None:
        self._asks = asks
        self._given_up = given_up
        self._limits = plan.limits
        self._service = service
        self._deployment = service.deployment
        self._posts = plan.requests
        self._continued = {post.after for post in plan.requests if _continues(post)}
        self._answers: dict[int, tuple[int, ...]] = {}  # prompt and answer of each turn that is continued
        self._schedule = Schedule(plan)
        self._now_ns = self._deployment.now_ns
        self._schedule.start(self._now_ns)
        self._requests: dict[int, EmulatedRequest] = {}
        # What happens to requests, in the order of events at one time: when, number of the request, and the request.
        self._events: dict[Callable[[EmulatedRequest, int], None], list[tuple[int, int, EmulatedRequest]]] = {
            self._free: [], self._resend: [], self._arrive: [], self._time_out: [],
        }  # fmt: skip
        self._until_token: set[int] = set()  # requests in flight that the client cancels after some tokens
        self._open: dict[Sequence, tuple[EmulatedRequest, TokenTimes]] = {}
        self._requests_with_faults = 0
        self._sent = 0
        self._due = sorted(((event.due(len(self._posts)), event) for event in events), key=lambda due: due[0])
        self._revivals: list[tuple[int, int, int]] = []  # when a replica starts again, its number, when it was launched
        self.past: list[tuple[int, int]] = []

    def run(self) -> list[EmulatedRequest]:
        """Send everything; the requests by index. Then the server's clock is at the end of the last one, or later.

        Raises:
            GivenUp: the load was given up.
        """
        while not (self._service.ignores_disconnects and self._all_ended):  # the server goes on alone
            if self._given_up():
                raise GivenUp
            until_ns = self._next_ns()
            step_by_step = self._requests_with_faults or self._until_token
            try:
                done = self._deployment.advance(until_ns, fast_forwarding=not step_by_step)
            except Unreachable as unreached:  # a decode server, after the prompt was computed
                self._lose([unreached.sequence], unreached.now_ns)
                continue
            if done is not None:
                self._receive(done)
            elif until_ns is None:
                break
            else:
                self._deployment.sleep_until(until_ns)
                self._happen(until_ns)
        answered = [self._requests[index] for index in sorted(self._requests)]
        self._deployment.sleep_until(max((request.ended_ns or 0 for request in answered), default=0))
        return answered

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
        send_ns = self._schedule.next_due_ns  # in the past if a request only waited for a slot
        times = heaps if send_ns is None else [max(send_ns, self._now_ns), *heaps]
        return min(times, default=None)

    def _happen(self, now_ns: int) -> None:
        self._now_ns = now_ns
        while self._revivals and self._revivals[0][0] <= now_ns:
            _, replica, launched_ns = heappop(self._revivals)
            self._deployment.revive(replica)
            self.past.append((launched_ns, now_ns))
        for due in self._schedule.take_due(now_ns, len(self._posts)):
            while self._due and self._due[0][0] <= self._sent:
                self._disturb(self._due.pop(0)[1], now_ns)
            self._sent += 1
            self._send(due.request, due.possible_ns, now_ns)
        for happen, heap in self._events.items():
            while heap and heap[0][0] <= now_ns:
                happen(heappop(heap)[2], now_ns)

    def _disturb(self, event: Event, now_ns: int) -> None:
        replica = self._deployment.number(event.pool, event.replica)
        if event.action == "restart":
            heappush(self._revivals, (now_ns + RESTART_NS, replica, now_ns))
            return
        self.past.append((now_ns, now_ns))
        self._lose(self._deployment.kill(replica), now_ns)

    def _lose(self, sequences: List[Sequence], now_ns: int) -> None:
        """The router has lost the server of these sequences."""
        for request in dict.fromkeys(self._open[sequence][0] for sequence in sequences if sequence in self._open):
            for line in request.token_times:  # the step that runs now never ends
                while line.token_ns and line.token_ns[-1] > now_ns:
                    line.token_ns.pop()
                    line.counts.pop()
            if request.tokens:
                self._give_up(request, Ending.CLOSED_EARLY, now_ns)
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
            refused.reply, refused.ending = None, Ending.ABANDONED
            self._end(refused, now_ns)
        else:
            self._send(self._posts[refused.index], refused.intended_ns, now_ns, refused)

    def _send(
        self, post: PlannedRequest, intended_ns: int, now_ns: int, refused: EmulatedRequest | None = None
    ) -> None:
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
        if post.cancellation is not None and post.cancellation.after_ns is not None:
            request.cancel_at_ns = request.first_sent_ns + post.cancellation.after_ns
        self._requests[post.index] = request
        self._later(arrived_ns, self._arrive, request)

    def _generation(self, post: PlannedRequest) -> GenerationRequest:
        """What a POST asks for. The prompt of a later turn begins with the earlier turns and their answers."""
        own = self._asks[post.index] if self._asks else self._service.ask(post.path, post.body)
        own = replace(own, session=post.session) if post.session else own
        if not _continues(post) or post.after is None:
            return own
        whole = replace(own, prompts=(self._answers[post.after] + own.prompts[0],))
        return checked(whole, self._service.launch)

    def _arrive(self, request: EmulatedRequest, _now_ns: int) -> None:
        if request.ask is None or request.reply is not None:
            retry, status = self._posts[request.index].retry, 0 if request.reply is None else request.reply.status
            if retry is not None and request.attempts < retry.attempts and status in RETRIED_STATUSES:
                again_ns = request.arrived_ns + retry.pause_ns(request.attempts, None)
                again_ns = min(again_ns, request.cancel_at_ns or again_ns)
                self._later(again_ns, self._resend, request)
                return
            self._end(request, request.arrived_ns)
            return
        if self._service.asleep:  # nothing wakes the server before the client has given up
            self._watch(request, request.arrived_ns)
            return
        self._requests_with_faults += request.fault is not None
        if self._least_tokens(request) is not None:
            self._until_token.add(request.index)
        request.token_times = [TokenTimes(s) for s in self._service.sequences(request.ask, request.arrived_ns)]
        request.unfinished = len(request.token_times)
        self._open |= {line.sequence: (request, line) for line in request.token_times}
        try:
            refusal = self._service.submit([line.sequence for line in request.token_times], request.arrived_ns)
        except Unreachable:
            self._lose([line.sequence for line in request.token_times], request.arrived_ns)
            return
        if refusal is not None:
            request.reply = refusal.reply()
            self._abandon(request)
            self._end(request, request.arrived_ns)
            return
        self._watch(request, request.arrived_ns)

    def _watch(self, request: EmulatedRequest, now_ns: int) -> None:
        """Look again when a limit can have run out. After the first token the idle limit applies, which can be earlier.
        """
        again_ns = min(request.until_ns(self._limits), now_ns + max(self._limits.idle_ns, 1))
        self._later(again_ns, self._time_out, request)

    def _least_tokens(self, request: EmulatedRequest) -> int | None:
        """Number of tokens after which the client cancels the request; None for never."""
        cancellation = self._posts[request.index].cancellation
        return None if cancellation is None else cancellation.after_tokens

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
            if request.index in self._until_token and request.tokens >= (self._least_tokens(request) or 0):
                self._give_up(request, Ending.ABANDONED, step.ended_ns)

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
        request.ending = Ending.COMPLETE if request.failed else Ending.CLOSED_EARLY
        self._abandon(request)
        self._end(request, now_ns)

    def _time_out(self, request: EmulatedRequest, now_ns: int) -> None:
        """The client closes a connection on which nothing has come for too long."""
        if request.ended_ns is not None:
            return
        if request.until_ns(self._limits) > now_ns:
            self._watch(request, now_ns)
            return
        self._give_up(request, request.limit_reached(self._limits), now_ns)

    def _give_up(self, request: EmulatedRequest, ending: Ending, now_ns: int) -> None:
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
        if request.outcome is Outcome.OK and request.index in self._continued:
            sequence = request.token_times[0].sequence
            self._answers[request.index] = sequence.tokens(0, sequence.length)
        self._later(now_ns, self._free, request)  # a step ends after the events that happen now

    def _free(self, request: EmulatedRequest, now_ns: int) -> None:
        """The place of a request that has ended is free."""
        for turn in self._schedule.finished(request.index, now_ns, answered=request.outcome is Outcome.OK):
            self._requests[turn.index] = not_continued(turn.index, now_ns + turn.think_ns)


def _continues(post: PlannedRequest) -> bool:
    """Whether the prompt contains the prompt of the request before and its answer."""
    return post.part is not None and post.part.continues
