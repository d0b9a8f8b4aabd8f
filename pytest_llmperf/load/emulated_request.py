"""One request in virtual time, from the client's send to its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.faults import HttpFault
from pytest_llmperf.emulator.http.answers import CRASHED, DONE, Events, error_event, events_of
from pytest_llmperf.emulator.http.generation_request import GenerationRequest
from pytest_llmperf.emulator.http.replies import EVENT_STREAM, Reply, json_reply
from pytest_llmperf.emulator.http.service import Service
from pytest_llmperf.model.exchange import EmulatedExchange, Ending
from pytest_llmperf.model.plan import StreamLimits
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.wire.completions import CUT_SHORT, GIVEN_UP
from pytest_llmperf.wire.stream import SHOWN_BYTES

_OUTCOMES = {Ending.COMPLETE: Outcome.OK, **GIVEN_UP, **CUT_SHORT}


@dataclass(slots=True)
class TokenTimes:
    """The token times of one sequence of a request.

    Args:
        token_ns, counts: times at which tokens arrived, and the number of tokens at each time.
    """

    sequence: Sequence
    token_ns: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class EmulatedRequest:
    """One request.

    Args:
        index: position in the plan.
        intended_ns, sent_ns, arrived_ns: intended send time, actual send time, and time of arrival at the engine.
        ask: the parsed request; None for a refused request.
        number: number of the request on the server.
        reply: complete answer without tokens; None for an answer with tokens.
        fault: planted fault that ends the request; None without a fault.
        token_times: token times by prompt.
        unfinished: number of unfinished sequences.
        ended_ns, ending: time and kind of the end that the client saw.
        failed: whether an error event ends the stream.
        attempts: number of sends by the client; `sent_ns` is of the last one.
        sends: number of sends by the router.
        first_sent_ns: time of the first send.
        cancel_at_ns: time at which the client cancels the request; None for never.
    """

    index: int
    intended_ns: int
    sent_ns: int
    arrived_ns: int
    ask: GenerationRequest | None
    number: int
    reply: Reply | None = None
    fault: HttpFault | None = None
    token_times: list[TokenTimes] = field(default_factory=list)
    unfinished: int = 0
    ended_ns: int | None = None
    ending: Ending = Ending.COMPLETE
    failed: bool = False
    attempts: int = 1
    first_sent_ns: int = 0
    cancel_at_ns: int | None = None
    sends: int = 1

    @property
    def tokens(self) -> int:
        """Number of tokens that the client has read."""
        return sum(sum(line.counts) for line in self.token_times)

    @property
    def last_ns(self) -> int:
        """Time of the last tokens that the client read; the time of arrival at the engine before any tokens."""
        return max((line.token_ns[-1] for line in self.token_times if line.token_ns), default=self.arrived_ns)

    @property
    def streaming(self) -> bool:
        """Whether the client has read tokens of a stream."""
        return self.ask is not None and self.ask.stream and any(line.token_ns for line in self.token_times)

    def until_ns(self, limits: StreamLimits) -> int:
        """The time at which the client cancels the request unless more tokens arrive."""
        until_ns = min(self._silent_until_ns(limits), self.sent_ns + limits.total_ns)
        return until_ns if self.cancel_at_ns is None else min(until_ns, self.cancel_at_ns)

    def limit_reached(self, limits: StreamLimits) -> Ending:
        """Which limit ran out."""
        if self.cancel_at_ns == self.until_ns(limits):
            return Ending.ABANDONED
        if self._silent_until_ns(limits) > self.sent_ns + limits.total_ns:
            return Ending.TOTAL_TIMEOUT
        return Ending.IDLE_TIMEOUT if self.streaming else Ending.FIRST_BYTE_TIMEOUT

    def _silent_until_ns(self, limits: StreamLimits) -> int:
        return self.last_ns + limits.idle_ns if self.streaming else self.sent_ns + limits.first_byte_ns

    @property
    def outcome(self) -> Outcome:
        if self.reply is not None and self.reply.status != 200:
            return Outcome.RATE_LIMITED if self.reply.status == 429 else Outcome.HTTP_STATUS
        return Outcome.ERROR_IN_STREAM if self.failed else _OUTCOMES[self.ending]

    def exchange(self, begun_ns: int, limits: StreamLimits) -> EmulatedExchange:
        """What the client has seen.

        Args:
            begun_ns: time of the session at which the server's clock was 0.
            limits: of the client.
        """
        emissions, outcome = self._emissions(), self.outcome
        usage = self.ask if emissions else None  # comes with each chunk; only the last one says what was cached
        return EmulatedExchange(
            index=self.index,
            intended_ns=begun_ns + self.intended_ns,
            sent_ns=None if self.ending is Ending.NOT_CONTINUED else begun_ns + self.first_sent_ns,
            ended_ns=begun_ns + (self.ended_ns or 0),
            ending=self.ending,
            outcome=outcome,
            error=self._error or limits.reached(self.ending),
            token_ns=tuple([begun_ns + at_ns for at_ns, _, _, _ in emissions]),
            token_counts=tuple([count for _, _, count, _ in emissions]),
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            output_tokens=None if usage is None else sum(count for _, _, count, _ in emissions),
            cached_tokens=sum(line.sequence.cached_tokens or 0 for line in self.token_times)
            if outcome is Outcome.OK else None,
            attempts=self.attempts,
        )

    @property
    def _error(self) -> str | None:
        """The error text of the server; None without an error."""
        if self.failed:
            return f"{CRASHED.status}: {CRASHED}"
        if self.reply is None or self.reply.status == 200:
            return None
        return f"HTTP {self.reply.status}: {self.reply.body[:SHOWN_BYTES]!r}"

    def answer(self, service: Service) -> Reply | None:
        """The answer that the client read, as one piece; None if the client read nothing."""
        if self.reply is not None or self.ask is None:
            return self.reply
        events = events_of(self.ask, service.launch, self.number, int(service.unix_s(self.arrived_ns)))
        if self.ask.stream:
            return Reply(200, b"".join(self._streamed(events)), EVENT_STREAM)
        if self.ending is not Ending.COMPLETE:
            return None
        return json_reply(events.whole_of(line.sequence for line in self.token_times))

    def _streamed(self, events: Events) -> Iterator[bytes]:
        done = [0] * len(self.token_times)
        emissions = self._emissions()
        if emissions:
            yield from events.opening()
        for _, index, count, line in emissions:
            sequence = line.sequence
            start = sequence.prompt_length + done[index]
            done[index] += count
            finished = done[index] >= sequence.max_tokens
            yield events.tokens(index, sequence.tokens(start, start + count), sequence.cached_tokens or 0, finished)
        if self.failed:
            yield error_event() + DONE
        elif self.ending is Ending.COMPLETE:
            yield from events.end()

    def _emissions(self) -> list[tuple[int, int, int, TokenTimes]]:
        """The arrivals of tokens in order of time: time in ns, index of the prompt, tokens, all times of the prompt."""
        rows = [
            (at_ns, index, count, line)
            for index, line in enumerate(self.token_times)
            for at_ns, count in zip(line.token_ns, line.counts, strict=True)
        ]
        if len(self.token_times) > 1:
            rows.sort(key=lambda row: row[:2])
        return rows


def not_continued(index: int, intended_ns: int) -> EmulatedRequest:
    """A turn that is never sent, because its prompt would contain an answer that is missing."""
    return EmulatedRequest(index, intended_ns, intended_ns, intended_ns, None, -1, ended_ns=intended_ns,
                           ending=Ending.NOT_CONTINUED)
