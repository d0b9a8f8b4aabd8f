"""One replay inside a load process: schedule, client, heartbeat and recording in one event loop."""

from __future__ import annotations

import resource
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic_ns

from pytest_llmperf.load.arrivals import Histogram, ReadStamps
from pytest_llmperf.load.client import Client
from pytest_llmperf.load.connection_setup import Route
from pytest_llmperf.load.pipe_protocol import PROGRESS, READY
from pytest_llmperf.load.reactor import NEVER, Handler, Reactor
from pytest_llmperf.load.recording import End, RecordingWriter
from pytest_llmperf.load.request_in_flight import RequestInFlight
from pytest_llmperf.load.schedule import Schedule
from pytest_llmperf.model.exchange import Ending, Exchange
from pytest_llmperf.model.plan import ConversationPart, LoadPlan, PlannedRequest
from pytest_llmperf.wire.conversation import AnswerReader, answer_part, joined


class Conversations:
    """The turns of a plan that contain answers. A branch is a turn that several turns continue."""

    def __init__(self, requests: Sequence[PlannedRequest]) -> None:
        self._next_turns: dict[int, list[tuple[PlannedRequest, ConversationPart]]] = {}
        self._histories: dict[int, bytes] = {}  # the whole prompt of a turn, as it stands in its body
        for request in requests:
            if request.part is not None and request.part.continues and request.after is not None:
                self._next_turns.setdefault(request.after, []).append((request, request.part))

    def reader_for(self, request: PlannedRequest) -> AnswerReader | None:
        """The reader of its answer; None if no later turn contains the answer."""
        return AnswerReader(request.answers, request.ends) if request.index in self._next_turns else None

    def ended(self, request: RequestInFlight) -> list[tuple[PlannedRequest, bytes]] | None:
        """The next turns with their bodies; None if the answer for the next turns is incomplete."""
        index, own = request.request.index, request.request.part
        waiting = self._next_turns.get(index)
        history = self._histories.pop(index, None)
        if waiting is None:
            return []
        request.listen()
        answer = None if request.reader is None or own is None else answer_part(request.reader, own.form)
        request.reader = None
        if answer is None or own is None or request.ending is not Ending.COMPLETE:
            return None
        if history is None:
            history = request.request.body[own.start : own.end]
        completed = []
        for turn, part in waiting:
            whole = joined(part.form, (history, answer, turn.body[part.start : part.end]))
            if turn.index in self._next_turns:
                self._histories[turn.index] = whole
            completed.append((turn, turn.body[: part.start] + whole + turn.body[part.end :]))
        return completed


_BEAT_NS = 50_000_000    # a wake-up of a sleeping process costs about 0.1 ms of CPU time
_BEATS_PER_REPORT = 5
_AHEAD_NS = 100_000_000  # connections are opened so long before a timed request needs them, less a beat
_OPENINGS_PER_BEAT = 10  # so many times a part of the connections is opened: all at once would delay a send
_WARM_LIMIT = 1024  # connections that an open loop opens ahead; a closed loop opens all before the start
_WARM_NS = 10_000_000_000  # longest wait for these; a lost SYN is repeated after 1, 3 and 7 s
# Of answers that ended or run. Recording costs 24 µs a request and waits until the loop is idle, unless more is held.
_MOST_HELD_BYTES = 96 * 2**20
_MOST_AT_ONCE = 8        # requests sent between two reads


class PlanReplayer:
    """Runs a plan to its end, or until cancelled: `prepare`, then `start`.

    Args:
        plan: what to send.
        route: where to.
        writer: takes every exchange soon after it ended.
        report: takes a packed PROGRESS about four times a second.
    """

    def __init__(
        self, plan: LoadPlan, route: Route, writer: RecordingWriter, report: Callable[[bytes], None]
    ) -> None:
        self._plan = plan
        self._writer = writer
        self._report = report
        self._arrivals = ReadStamps()
        self.reactor = Reactor(self._arrivals)
        self._client = Client(self.reactor, self._arrivals, plan, route, self._on_end)
        self._schedule = Schedule(plan)
        self._conversations = Conversations(plan.requests)
        self._landed: deque[RequestInFlight] = deque()
        self._pausing: set[RequestInFlight] = set()  # refused requests that will be sent again
        self._over = False
        self._unsent = {request.index: request for request in plan.requests}
        self._failed = 0
        self._done = 0
        self._beats = 0
        self._lag = array("q")
        self._turnarounds = Histogram()
        self._turnaround_ns = 0
        self._clock_gap_ns = 0
        self._started_ns: int | None = None
        self._begun_ns, self._begun_cpu_ns = monotonic_ns(), time.process_time_ns()
        self._beat_due_ns = self._boot_due_ns = 0
        self.reactor.on_alarm = self._pump
        self.reactor.spare_work = self._spare_work

    def run(self) -> None:
        """Open connections, say READY, and replay from the time that `start` gives; returns when all is recorded."""
        self._client.warm(min(self._plan.concurrency or 0, len(self._plan.requests)))
        self._get_ready(monotonic_ns() + _WARM_NS)
        self.reactor.run()
        while self._landed:
            self._record_one()
        self._client.cancel()  # closes what is idle
        self._note_lag()
        self._flush()
        self._writer.end(self._end())
        self.reactor.close()
        self._arrivals.close()

    def start(self, started_ns: int) -> None:
        """Time zero of the schedule is then."""
        if self._over or self._started_ns is not None:
            return
        self._started_ns = started_ns
        self._begun_ns, self._begun_cpu_ns = monotonic_ns(), time.process_time_ns()
        self._writer.start(started_ns)
        self._schedule.start(started_ns)
        self._beat_due_ns, self._boot_due_ns = monotonic_ns(), _boottime_ns()
        self._beat()
        if self._schedule.done:
            self._finish()
        else:
            self.reactor.alarm_ns = self._schedule.next_due_ns or 0

    def cancel(self) -> None:
        """Give up: what is in flight ends as CANCELLED, the rest was NOT_SENT."""
        if self._over:
            return
        now_ns = monotonic_ns()
        if self._started_ns is None:
            self._started_ns = now_ns
            self._writer.start(now_ns)
        self._finish()
        self._client.cancel()
        for pausing in list(self._pausing):
            self._give_up(pausing, Ending.CANCELLED)
        for request in self._unsent.values():
            intended_ns = self._started_ns + (request.at_ns or 0)
            self._writer.exchange(_unsent(request.index, intended_ns, Ending.NOT_SENT, now_ns))

    def _get_ready(self, deadline_ns: int) -> None:
        if self._client.warming and monotonic_ns() < deadline_ns:
            self.reactor.call_at(monotonic_ns() + 1_000_000, lambda: self._get_ready(deadline_ns))
        else:
            self._report(READY)

    def _finish(self) -> None:
        self._over = True
        self.reactor.alarm_ns = NEVER
        self.reactor.stop()

    def _on_end(self, request: RequestInFlight) -> None:
        pause_ns = None if self._over else request.pause_before_retry_ns(time.clock_gettime(time.CLOCK_REALTIME))
        if pause_ns is not None:
            self._pausing.add(request)
            self.reactor.call_at(request.ended_ns + pause_ns, lambda: self._retry(request))
            return
        self._done += 1
        self._failed += request.ending not in (Ending.COMPLETE, Ending.ABANDONED)
        self._landed.append(request)
        if self._over:
            return
        next_turns = self._conversations.ended(request)
        for turn, body in next_turns or ():
            self._client.complete(turn, body)
        dropped = self._schedule.finished(request.request.index, request.ended_ns, answered=next_turns is not None)
        for turn in dropped:
            del self._unsent[turn.index]
            self._done += 1
            self._failed += 1
            intended_ns = request.ended_ns + turn.think_ns
            self._writer.exchange(_unsent(turn.index, intended_ns, Ending.NOT_CONTINUED, intended_ns))
        if self._schedule.done:
            self._finish()
        else:
            self.reactor.alarm_ns = 0

    def _retry(self, request: RequestInFlight) -> None:
        if request in self._pausing:
            self._pausing.remove(request)
            self._client.send_again(request, self._conversations.reader_for(request.request))

    def _give_up(self, request: RequestInFlight, ending: Ending) -> None:
        """End a request now that is in flight or waits for its next attempt; nothing to do for any other request."""
        if request in self._pausing:
            self._pausing.remove(request)
            self._client.intake.recorded(request)
            request.forget_attempt(monotonic_ns(), None)
            request.ending, request.ended_ns = ending, request.released_ns
            self._on_end(request)
        else:
            self._client.finish(request, ending)

    def _spare_work(self) -> Handler | None:
        """Work for a loop without ready descriptors: read a part of an answer that a next turn will contain, else
        record a finished request."""
        if self._client.unheard:
            return self._listen
        return self._record_one if self._landed else None

    def _listen(self) -> None:
        self._client.unheard.popleft().listen()

    def _record_one(self) -> None:
        """Record a finished request."""
        request = self._landed.popleft()
        self._client.intake.recorded(request)
        self._writer.exchange(request.exchange())

    def _pump(self) -> None:
        """Send what is due."""
        self.reactor.alarm_ns = NEVER
        if self._over:
            return
        for due in self._schedule.take_due(monotonic_ns(), _MOST_AT_ONCE):
            del self._unsent[due.request.index]
            intended_ns = due.intended_ns
            if intended_ns is None:
                intended_ns = monotonic_ns()
                self._turnarounds.add(intended_ns - due.possible_ns)
                self._turnaround_ns += max(0, intended_ns - due.possible_ns)
            request = self._client.send(due.request, intended_ns, self._conversations.reader_for(due.request))
            cancellation = due.request.cancellation
            if cancellation is not None and cancellation.after_ns is not None:
                self.reactor.call_at(request.released_ns + cancellation.after_ns,
                                     partial(self._give_up, request, Ending.ABANDONED))
        while self._client.intake.held_bytes > _MOST_HELD_BYTES and self._landed:
            self._record_one()
        due_ns = self._schedule.next_due_ns
        if due_ns is not None and not self._over:
            self.reactor.alarm_ns = due_ns

    def _note_lag(self) -> int:
        """Record how late this beat is, expect the next one; the time of this one."""
        now_ns, boot_ns = monotonic_ns(), _boottime_ns()
        if self._beat_due_ns:
            self._lag.append(max(0, now_ns - self._beat_due_ns))
            self._clock_gap_ns = max(self._clock_gap_ns, boot_ns - self._boot_due_ns)
        # Counted from the start of this beat: a pause in the midst of it must show in the next.
        self._beat_due_ns, self._boot_due_ns = now_ns + _BEAT_NS, boot_ns + _BEAT_NS
        return now_ns

    def _beat(self) -> None:
        now_ns = self._note_lag()
        if self._over:
            return
        self._client.sweep(now_ns, self._beats)
        self._open_ahead(_OPENINGS_PER_BEAT)
        self._beats += 1
        if self._beats % _BEATS_PER_REPORT == 0:
            self._flush()
        self.reactor.call_at(self._beat_due_ns, self._beat)

    def _open_ahead(self, times: int) -> None:
        """Open connections for requests that are due soon, in `times` equal steps until the next beat."""
        now_ns = monotonic_ns()
        missing = self._client.warm(min(self._schedule.upcoming(now_ns + _AHEAD_NS), _WARM_LIMIT), times)
        if missing and not self._over:
            self.reactor.call_at(now_ns + _BEAT_NS // _OPENINGS_PER_BEAT, partial(self._open_ahead, times - 1))

    def _flush(self) -> None:
        self._writer.lag(self._lag)
        self._lag = array("q")
        elapsed_ns = max(0, monotonic_ns() - (self._started_ns or monotonic_ns()))
        self._report(PROGRESS.pack(self._client.sent, self._done, self._failed, elapsed_ns, self._client.intake.reads))

    def _end(self) -> End:
        return End(
            ended_ns=monotonic_ns(),
            clock_gap_ns=self._clock_gap_ns,
            cpu_ns=time.process_time_ns() - self._begun_cpu_ns,
            elapsed_ns=monotonic_ns() - self._begun_ns,
            memory_bytes=_peak_memory_bytes(),
            turnaround_ns=self._turnaround_ns,
            read_delays=self._arrivals.delays,
            stamp_errors=self._arrivals.errors,
            turnarounds=self._turnarounds,
        )


def _unsent(index: int, intended_ns: int, ending: Ending, ended_ns: int) -> Exchange:
    """The exchange of a request that was never sent."""
    empty: array[int] = array("q")
    return Exchange(index, intended_ns, None, ended_ns, ending, empty, empty, b"")


def _peak_memory_bytes() -> int:
    """Peak resident memory of this program in bytes, from /proc; else getrusage, which counts time before exec."""
    lines = Path("/proc/self/status").read_text(errors="replace").splitlines()
    own_kib = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return 1024 * (own_kib[0] if own_kib else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _boottime_ns() -> int:
    """Goes on while the machine is suspended, which CLOCK_MONOTONIC does not."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
