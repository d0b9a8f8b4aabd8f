"""What one request did, as raw facts. Every metric is a function of these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar, overload

Derived = TypeVar("Derived")
MOST_REASONS = 5  # of failures in one sentence
MOST_DETAILS = 20  # texts of failed requests that stay in memory: the run folder never holds them


class Outcome(Enum):
    """Whether a request counts as served, and if not, why."""

    OK = "ok"
    NO_CONNECTION = "no connection"
    HTTP_STATUS = "http status"            # anything but 200 and a refusal
    RATE_LIMITED = "rate limited"          # HTTP 429 or 503: the service refuses more requests for now
    ERROR_IN_STREAM = "error in stream"    # HTTP 200 with an error event inside
    TRUNCATED = "truncated"                # the stream ended without finish reason, usage or [DONE]
    MALFORMED = "malformed"                # not HTTP, not SSE, not JSON
    UNSUCCESSFUL_END = "unsuccessful end"  # a finish reason that is no success, such as "abort"
    NOT_ASKED_FOR = "answer to another request"  # its request id or its choices belong to another request
    EMPTY = "empty"                        # a complete answer without content
    WRONG_LENGTH = "wrong length"          # not the number of tokens that was asked for
    COUNTS_DISAGREE = "token counts disagree"  # its usage contradicts what its chunks brought
    TIMEOUT = "timeout"
    RESET = "reset"
    STALE = "stale connection"
    CANCELLED = "cancelled"                # the run was given up
    ABANDONED = "cancelled by the client"  # as the workload states: a user who stops reading
    NOT_CONTINUED = "conversation ended"   # an earlier turn failed, and this turn would contain its answer


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Raw facts of one request. Times are CLOCK_MONOTONIC nanoseconds.

    Args:
        index: position in the workload.
        intended_ns: intended send time; latency counts from this time.
        sent_ns: time at which the request was written to the socket; None if the request was never sent.
        ended_ns: time at which the last byte arrived or the load generator gave up.
        outcome: OK, or the kind of failure.
        detail: explanation of a failure in one line; None for OK.
        arrivals_ns: one stamp per content chunk: the arrival of the read that completed the chunk's event.
        chunk_tokens: tokens in each content chunk, as long as `arrivals_ns`; None if the server sends no counts.
        asked_prompt_tokens: prompt tokens according to the workload; None for text.
        asked_output_tokens: output tokens that the workload requests.
        text_tokens: tokens of the received text by a named tokenizer; None if the server counts the tokens.
        prompt_tokens, output_tokens, cached_tokens: from the server's usage; None if the usage lacks the count.
        coalesced_chunks: number of content chunks that arrived in the same read as the previous chunk, so the gap
            between the two is unknown.
        replaced_text: whether invalid UTF-8 was replaced.
        tag: class of the request within a mixed workload.
        models: the model names in the answer's chunks, each once; empty if no chunk names a model.
        turn: number of the request within its conversation, from 1.
        after: index of the turn before; None for a first turn.
        whole: whether the request asked for a whole answer, which has no times between its send and its end.
        answer_hash: of the answer that the next turn contains; None if the next turn contains a seeded reply.
        attempts: number of sends; above 1 where the workload retries refused requests. `sent_ns` is of the first send.
        reason: kind of the failure in the words of the field, such as "HTTP 500", without a text of the server; "" if
            the outcome says it all.
        choices: number of answers that the request asked for (`n`); the counts of tokens are of all of them.
        asked_model: model that the request named, where the workload distributes requests over models; "" for the
            model of the server.
        answer_id: request id that the server gave the answer; None without. Run folders do not contain it.
        replica: replica that answered, by a response header; None without. Run folders contain sums by replica only.
    """

    index: int
    intended_ns: int
    sent_ns: int | None
    ended_ns: int
    outcome: Outcome
    detail: str | None = None
    arrivals_ns: tuple[int, ...] = ()
    chunk_tokens: tuple[int, ...] | None = None
    asked_prompt_tokens: int | None = None
    asked_output_tokens: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    coalesced_chunks: int = 0
    replaced_text: bool = False
    tag: str = ""
    models: tuple[str, ...] = ()
    turn: int = 1
    after: int | None = None
    answer_hash: str | None = None
    whole: bool = False
    text_tokens: int | None = None
    attempts: int = 1
    asked_model: str = ""
    choices: int = 1
    reason: str = ""
    answer_id: str | None = field(default=None, compare=False)
    replica: str | None = field(default=None, compare=False)

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def failed(self) -> bool:
        """Whether the request was not served, and the client did not cancel the request by intent."""
        return self.outcome not in (Outcome.OK, Outcome.ABANDONED)


def failure_counts(records: Iterable[RequestRecord]) -> dict[str, int]:
    """Reason → number of failed requests, the most frequent reason first."""
    counts = Counter(record.reason or record.outcome.value for record in records if record.failed)
    return dict(counts.most_common())


def reasons_text(counts: Mapping[str, int]) -> str:
    """Reasons with their counts, most frequent first: "17 × HTTP 500, 1 × reset"."""
    reasons = Counter(counts).most_common()
    shown = [f"{count} × {reason}" for reason, count in reasons[:MOST_REASONS]]
    others = sum(count for _, count in reasons[MOST_REASONS:])
    return ", ".join([*shown, f"{others} × others"] if others else shown)


class RunRecords(Sequence[RequestRecord]):
    """The records of one run, by index: in memory until they are released, then read back on first use.

    A run of 160,000 chunks takes 23 MB here, and 1 MB in the run folder.

    Attributes:
        start_ns: the first intended send; 0 for no record.
    """

    def __init__(self, records: Iterable[RequestRecord] = ()) -> None:
        loaded = tuple(records)
        self.start_ns = min((record.intended_ns for record in loaded), default=0)
        self._count: int | None = len(loaded)
        self._loaded: tuple[RequestRecord, ...] | None = loaded
        self._derived: dict[Callable[[Sequence[RequestRecord]], object], object] = {}
        self._read: Callable[[], Iterable[RequestRecord]] | None = None
        failed = [record for record in loaded if record.detail is not None]
        self._details = {record.index: record.detail for record in failed[:MOST_DETAILS]}

    @classmethod
    def of(cls, records: Sequence[RequestRecord]) -> RunRecords:
        """The records of one run, in any order; `records` itself where it is one already."""
        return records if isinstance(records, RunRecords) else cls(sorted(records, key=lambda record: record.index))

    @classmethod
    def unread(cls, read: Callable[[], Iterable[RequestRecord]]) -> RunRecords:
        """The records of a stored run: `read` is called on first use of a record or of their number."""
        records = cls()
        records._loaded, records._count, records._read = None, None, read
        return records

    @property
    def loaded(self) -> bool:
        """Whether they are in memory."""
        return self._loaded is not None

    def stored(self, read: Callable[[], Iterable[RequestRecord]]) -> None:
        """Note that the records have been written: `read` gives them back, all but the texts of failed requests."""
        self._read = read

    def release(self) -> None:
        """Forget the records and what was derived from them. Records that were never written stay."""
        if self._read is not None:
            self._loaded = None
            self._derived = {}

    def derived(self, compute: Callable[[Sequence[RequestRecord]], Derived]) -> Derived:
        """What a function makes of the records; kept as long as they are in memory."""
        if compute not in self._derived:
            self._derived[compute] = compute(self._all)
        return self._derived[compute]  # type: ignore[return-value]

    @property
    def _all(self) -> tuple[RequestRecord, ...]:
        if self._loaded is None:
            records = () if self._read is None else self._read()
            details = self._details  # of another than the first few, the outcome alone is known
            self._loaded = tuple(
                replace(record, detail=details[record.index]) if record.index in details else record
                for record in records
            )
        return self._loaded

    def __len__(self) -> int:
        return len(self._all) if self._count is None else self._count

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(self._all)

    @overload
    def __getitem__(self, position: int) -> RequestRecord: ...
    @overload
    def __getitem__(self, position: slice) -> tuple[RequestRecord, ...]: ...
    def __getitem__(self, position: int | slice) -> RequestRecord | tuple[RequestRecord, ...]:
        return self._all[position]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Sequence) and self._all == tuple(other))

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        count = "not read yet" if self._count is None else self._count
        return f"<RunRecords: {count}, {'in memory' if self.loaded else 'in the run folder'}>"
