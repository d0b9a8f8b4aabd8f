"""A client that speaks HTTP in virtual time: requests as text, planted faults, and its own patience."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from pytest_llmperf.emulator.core.engine import Leap, Step
from pytest_llmperf.emulator.http.replies import Refusal
from pytest_llmperf.emulator.virtual.departures import Departures, Plan, Request
from pytest_llmperf.emulator.virtual.flights import Flight, Line

if TYPE_CHECKING:
    from pytest_llmperf.emulator.core.sequence import Sequence
    from pytest_llmperf.emulator.http.asks import Ask
    from pytest_llmperf.emulator.http.service import Service

REFUSED = Refusal(500, "Internal server error (a planted fault).", "InternalServerError")


@dataclass(frozen=True, slots=True)
class Patience:
    """When the client closes a connection: before the answer's first token, between two of a stream, altogether."""

    first_byte_ns: int = 120_000_000_000
    idle_ns: int = 30_000_000_000
    total_ns: int = 600_000_000_000

    def until_ns(self, flight: Flight) -> int:
        """When it gives up unless it hears something."""
        return min(self._silent_until_ns(flight), flight.sent_ns + self.total_ns)

    def ending(self, flight: Flight) -> str:
        """Which limit ran out."""
        if self._silent_until_ns(flight) > flight.sent_ns + self.total_ns:
            return "total timeout"
        return "idle timeout" if flight.streaming else "first byte timeout"

    def look_again_ns(self, flight: Flight, now_ns: int) -> int:
        """When it may have given up: a first token brings that nearer, to an idle limit after it."""
        return min(self.until_ns(flight), now_ns + max(self.idle_ns, 1))

    def _silent_until_ns(self, flight: Flight) -> int:
        return flight.last_ns + self.idle_ns if flight.streaming else flight.sent_ns + self.first_byte_ns


@dataclass(frozen=True, slots=True)
class Posted:
    """One POST of a plan; times as in departures.Request. `ask`: its body, where somebody has read it already."""

    index: int
    path: str
    body: bytes
    at_ns: int | None = None
    after: int | None = None
    think_ns: int = 0
    ask: Ask | None = None


def fly(
    service: Service, posts: List[Posted], concurrency: int | None = None, patience: Patience | None = None
) -> list[Flight]:
    """Send a plan from the present time on; flights by index.

    Raises:
        ValueError: the plan cannot end.
    """
    return _Client(service, posts, concurrency, patience or Patience()).run()


class _Client:
    def __init__(self, service: Service, posts: List[Posted], concurrency: int | None, patience: Patience) -> None:
        self._patience = patience
        self._service = service
        self._deployment = service.deployment
        self._posts = posts
        plan = Plan(tuple(Request(p.index, (), 0, p.at_ns, p.after, p.think_ns) for p in posts), concurrency)
        self._departures = Departures(plan, self._deployment.now_ns)
        self._flights: list[Flight] = []
        self._arrivals: list[tuple[int, int, Flight]] = []
        self._deadlines: list[tuple[int, int, Flight]] = []
        self._open: dict[Sequence, tuple[Flight, Line]] = {}
        self._doomed = 0

    def run(self) -> list[Flight]:
        while True:
            until_ns = self._next_ns()
            done = self._deployment.advance(until_ns, leaping=not self._doomed)
            if done is not None:
                self._receive(done)
            elif until_ns is None:
                break
            else:
                self._deployment.sleep_until(until_ns)
                self._happen(until_ns)
        return sorted(self._flights, key=lambda flight: flight.index)

    def _next_ns(self) -> int | None:
        """When something happens on the client's side or on the way to the server."""
        while self._deadlines and self._deadlines[0][2].ended_ns is not None:
            heappop(self._deadlines)
        heaps = [heap[0][0] for heap in (self._arrivals, self._deadlines) if heap]
        departs_ns = self._departures.next_ns
        return min(heaps if departs_ns is None else [departs_ns, *heaps], default=None)

    def _happen(self, now_ns: int) -> None:
        for request, intended_ns in self._departures.go(now_ns):
            self._depart(self._posts[request.index], intended_ns, now_ns)
        while self._arrivals and self._arrivals[0][0] <= now_ns:
            _, _, flight = heappop(self._arrivals)
            self._arrive(flight)
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, _, flight = heappop(self._deadlines)
            self._lose_patience(flight, now_ns)

    def _depart(self, post: Posted, intended_ns: int, now_ns: int) -> None:
        number = self._service.number()
        try:
            ask = post.ask or self._service.ask(post.path, post.body)
        except Refusal as refusal:
            arrived_ns = now_ns + self._deployment.ingress_ns(0)
            flight = Flight(post.index, intended_ns, now_ns, arrived_ns, None, number, reply=refusal.reply())
        else:
            arrived_ns = now_ns + self._deployment.ingress_ns(ask.prompt_tokens)
            flight = Flight(post.index, intended_ns, now_ns, arrived_ns, ask, number)
            flight.fate = self._service.fate(number, ask.max_tokens)
            if flight.fate is not None and flight.fate.kind == "refused":
                flight.reply = REFUSED.reply()
        self._flights.append(flight)
        heappush(self._arrivals, (arrived_ns, number, flight))

    def _arrive(self, flight: Flight) -> None:
        if flight.ask is None or flight.reply is not None:
            self._end(flight, flight.arrived_ns)
            return
        self._doomed += flight.fate is not None
        for sequence in self._service.sequences(flight.ask, flight.arrived_ns):
            line = Line(sequence)
            flight.lines.append(line)
            flight.unfinished += 1
            self._open[sequence] = flight, line
            try:
                self._deployment.submit(sequence, flight.arrived_ns)
            except ValueError as refusal:
                if self._service.leaks:
                    continue
                flight.reply = Refusal(400, str(refusal)).reply()
                self._abandon(flight)
                self._end(flight, flight.arrived_ns)
                return
        self._watch(flight, flight.arrived_ns)

    def _watch(self, flight: Flight, now_ns: int) -> None:
        heappush(self._deadlines, (self._patience.look_again_ns(flight, now_ns), flight.number, flight))

    def _receive(self, done: Step | Leap) -> None:
        if isinstance(done, Leap):
            self._receive_leap(done)
        else:
            self._receive_step(done)
        for sequence in done.finished:
            self._finish(sequence, done.ended_ns)

    def _receive_leap(self, leap: Leap) -> None:
        ones = [1] * len(leap.ends_ns)
        for sequence in leap.sequences:
            found = self._open.get(sequence)
            if found is not None:
                found[1].token_ns += leap.ends_ns
                found[1].counts += ones

    def _receive_step(self, step: Step) -> None:
        for sequence, count in step.tokens:
            found = self._open.get(sequence)
            if found is None:
                continue  # its client has gone, or hears no more
            flight, line = found
            fate = flight.fate
            if fate is not None and sum(sum(one.counts) for one in flight.lines) + count > fate.after_tokens:
                self._cut(flight, step.ended_ns)
                continue
            line.token_ns.append(step.ended_ns)
            line.counts.append(count)

    def _finish(self, sequence: Sequence, now_ns: int) -> None:
        found = self._open.pop(sequence, None)
        if found is None:
            return
        flight, line = found
        self._service.latencies.emissions(sequence, line.token_ns, line.counts)
        self._service.finished(sequence, line.token_ns[0], now_ns)
        flight.unfinished -= 1
        if not flight.unfinished:
            self._end(flight, now_ns)

    def _cut(self, flight: Flight, now_ns: int) -> None:
        """The planted fault strikes."""
        fate = flight.fate
        if fate is None:
            return
        self._doomed -= 1
        if fate.kind == "hang":
            for line in flight.lines:
                self._open.pop(line.sequence, None)  # the engine goes on; only nobody hears of it
            return
        flight.failed = fate.kind == "error"
        flight.ending = "complete" if flight.failed else "closed early"
        self._abandon(flight)
        self._end(flight, now_ns)

    def _lose_patience(self, flight: Flight, now_ns: int) -> None:
        """The client closes a connection on which nothing has come for too long."""
        if flight.ended_ns is not None:
            return
        if self._patience.until_ns(flight) > now_ns:
            self._watch(flight, now_ns)
            return
        flight.ending = self._patience.ending(flight)
        self._doomed -= flight.fate is not None and flight.fate.kind != "hang"
        self._abandon(flight)
        self._end(flight, now_ns)

    def _abandon(self, flight: Flight) -> None:
        for line in flight.lines:
            self._open.pop(line.sequence, None)
            self._deployment.abort(line.sequence)

    def _end(self, flight: Flight, now_ns: int) -> None:
        flight.ended_ns = now_ns
        self._departures.ended(flight.index, now_ns)
