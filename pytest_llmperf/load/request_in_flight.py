"""A request from its send to its end, with the state that the load process keeps."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from pytest_llmperf.model.exchange import Ending, Exchange
from pytest_llmperf.model.plan import PlannedRequest, StreamLimits
from pytest_llmperf.model.request import RETRIED_STATUSES
from pytest_llmperf.wire.conversation import AnswerReader
from pytest_llmperf.wire.http import Framing, retry_after_s
from pytest_llmperf.wire.stream import TokenCounter

_LONGEST_RETRY_AFTER_S = 60.0  # clients of OpenAI wait no longer either
_ALWAYS_UNANSWERED = (Ending.CONNECT_FAILED, Ending.CONNECT_TIMEOUT, Ending.FIRST_BYTE_TIMEOUT, Ending.STALE)
_LOST = (Ending.RESET, Ending.CLOSED_EARLY, Ending.TOTAL_TIMEOUT)
_READ_BYTES = 80  # that a read takes in memory beside its content: an object, a stamp, their places in lists


class Intake:
    """How much of a server's answers a load process has read, and how much of that it still holds.

    Args:
        limits: of one answer, of what is held, and of all answers together.

    Attributes:
        reads: number of reads of all answers.
    """

    def __init__(self, limits: StreamLimits) -> None:
        self._most_of_one, self._most_held, self._most = limits.response_bytes, limits.held_bytes, limits.replay_bytes
        self._all_bytes = self.reads = 0
        self.held_bytes = 0

    def take(self, request: RequestInFlight, size: int) -> str | None:
        """Count a read of `size` bytes. Returns which limit the read exceeds; None if it exceeds no limit."""
        request.size_bytes += size
        self._all_bytes += size
        self.reads += 1
        self.held_bytes += size + _READ_BYTES
        if request.size_bytes > self._most_of_one:
            return f"this answer is longer than {self._most_of_one:,} bytes (response_limit_mib)"
        if self.held_bytes > self._most_held:
            return (f"the answers under way take more than {self._most_held:,} bytes of memory "
                    "(responses_memory_limit_mib)")
        if self._all_bytes > self._most:
            return f"the answers of this run are longer than {self._most:,} bytes together"
        return None

    def recorded(self, request: RequestInFlight) -> None:
        """Note that the reads of a request are written to the recording and hold no memory."""
        self.held_bytes -= request.held_bytes


@dataclass(slots=True, eq=False)
class RequestInFlight:
    """A request in flight with the unparsed reads of its answer. Only the framing parses the reads, and only if the
    message may have ended.

    Attributes:
        released_ns: time at which the schedule released the request. The request is sent once a connection is open.
        chunked, until_close, keep_alive: facts from the head of the answer, see `Framing`.
        framed: number of reads that the framing has parsed.
        size_bytes: total size of the reads.
        reader: takes the answer that a later turn will contain; None if no turn does.
        heard: number of reads that `reader` has taken.
        tokens: counts the generated tokens of a request that is cancelled after some; None for any other request.
        attempts: number of sends.
        first_sent_ns: time of the first send; None before a retry.
    """

    request: PlannedRequest
    intended_ns: int
    released_ns: int
    sent_ns: int | None = None
    reused: bool = False
    stamps: array[int] = field(default_factory=lambda: array("q"))
    reads: list[bytes] = field(default_factory=list)
    chunked: bool = False
    until_close: bool = False
    keep_alive: bool = False
    _framing: Framing | None = None
    framed: int = 0
    size_bytes: int = 0
    ending: Ending = Ending.NOT_SENT
    ended_ns: int = 0
    error: str | None = None
    reader: AnswerReader | None = None
    heard: int = 0
    tokens: TokenCounter | None = None
    attempts: int = 1
    first_sent_ns: int | None = None

    def __post_init__(self) -> None:
        cancellation = self.request.cancellation
        if cancellation is not None and cancellation.after_tokens is not None:
            self.tokens = TokenCounter(self.request.answers)

    def listen(self) -> None:
        """Give the reader what was read since the last call."""
        if self.reader is not None and self.heard < len(self.reads):
            fresh, self.heard = self.reads[self.heard :], len(self.reads)
            self.reader.feed(b"".join(fresh))

    def overdue(self, now_ns: int, limits: StreamLimits) -> Ending | None:
        """Which limit it exceeds, if any."""
        if self.sent_ns is None:
            return Ending.CONNECT_TIMEOUT if now_ns - self.released_ns > limits.connect_ns else None
        if now_ns - self.sent_ns > limits.total_ns:
            return Ending.TOTAL_TIMEOUT
        if not self._answering:
            return Ending.FIRST_BYTE_TIMEOUT if now_ns - self.sent_ns > limits.first_byte_ns else None
        return Ending.IDLE_TIMEOUT if now_ns - self.stamps[-1] > limits.idle_ns else None

    def reaches_cancellation(self) -> bool:
        """Count the tokens of the last read; whether the client cancels after this number of tokens."""
        cancellation = self.request.cancellation
        if self.tokens is None or cancellation is None or cancellation.after_tokens is None:
            return False
        return self.tokens.feed(self.reads[-1]) >= cancellation.after_tokens

    def pause_before_retry_ns(self, unix_s: float) -> int | None:
        """Pause before the request is sent again, once it has ended; None if it is not sent again.

        Args:
            unix_s: Unix time, for a `Retry-After` that is a date.
        """
        policy = self.request.retry
        if policy is None or self.attempts >= policy.attempts:
            return None
        if self.ending is Ending.COMPLETE:
            framing = self._framing
            if framing is None or framing.status not in RETRIED_STATUSES:
                return None
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in framing.headers}
            asked_s = retry_after_s(headers, unix_s)
            return None if (asked_s or 0.0) > _LONGEST_RETRY_AFTER_S else policy.pause_ns(self.attempts, asked_s)
        unanswered = self.ending in _ALWAYS_UNANSWERED or (self.ending in _LOST and not self._answering)
        return policy.pause_ns(self.attempts, None) if unanswered else None

    def begin_again(self, released_ns: int, reader: AnswerReader | None) -> None:
        """Count the next send, and forget the refused attempt; arguments as in `forget_attempt`."""
        self.forget_attempt(released_ns, reader)
        self.attempts += 1

    def forget_attempt(self, released_ns: int, reader: AnswerReader | None) -> None:
        """Forget the answer to the last attempt.

        Args:
            released_ns: time of the next send, or of the end without a further send.
            reader: as in the attributes.
        """
        self.first_sent_ns = self.sent_ns if self.first_sent_ns is None else self.first_sent_ns
        self.released_ns, self.sent_ns, self.reused = released_ns, None, False
        self.stamps, self.reads = array("q"), []
        self.chunked = self.until_close = self.keep_alive = False
        self._framing, self.framed, self.size_bytes, self.heard = None, 0, 0, 0
        self.ending, self.ended_ns, self.error, self.reader = Ending.NOT_SENT, 0, None, reader
        self.__post_init__()

    @property
    def _answering(self) -> bool:
        """Whether the body has begun: engines send the head of a stream at once, long before its first token.

        The framing leaves reads unseen only where the head is known and the body comes in chunks.
        """
        return self.framed < len(self.reads) or (self._framing is not None and self._framing.begun)

    def find_end(self) -> bool:
        """Whether the reads so far hold the whole message."""
        framing = self._framing
        if framing is None:
            framing = self._framing = Framing()
        if self.framed == len(self.reads):
            return framing.complete
        fresh, self.framed = self.reads[self.framed :], len(self.reads)
        complete = framing.feed(b"".join(fresh))
        self.chunked, self.until_close, self.keep_alive = framing.chunked, framing.until_close, framing.keep_alive
        return complete

    @property
    def held_bytes(self) -> int:
        """Memory that its reads take."""
        return self.size_bytes + _READ_BYTES * len(self.reads)

    def exchange(self) -> Exchange:
        """All that is known of it."""
        sizes = array("q", map(len, self.reads))
        sent_ns = self.sent_ns if self.first_sent_ns is None else self.first_sent_ns
        return Exchange(
            self.request.index, self.intended_ns, sent_ns, self.ended_ns, self.ending,
            self.stamps, sizes, b"".join(self.reads), self.reused, self.error, self.attempts,
        )
