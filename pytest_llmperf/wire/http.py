"""HTTP/1.1 answers, framed by httptools (llhttp, the parser of Node.js)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import httptools

from pytest_llmperf.model.exchange import Ending, Exchange

MOST_HEADERS = 256
UNFRAMED_LIMIT_BYTES = 64 * 1024  # of heads, trailers and sizes of chunks, before a byte of the body follows


class NotHttpError(ValueError):
    """The bytes are not an HTTP/1.x response."""


class Framing:
    """Finds the end of one HTTP answer. The load process uses this class alone; `read_answer` also returns the body.

    Attributes:
        status: status of the final answer; None until its head was read. Interim answers (1xx) are skipped.
        chunked: whether the body is sent with chunked transfer encoding.
        until_close: whether the body has no announced length, so the end of the connection ends the body.
        begun: whether bytes of the body have arrived.
        complete: whether the message ended as announced.
        keep_alive: whether the connection may serve a further request; known once the message is complete.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.chunked = False
        self.until_close = False
        self.begun = False
        self.complete = False
        self.keep_alive = False
        self._bodies = 0
        self._unframed_bytes = 0
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> bool:
        """Take further bytes; whether the message is complete. Bytes after its end are ignored.

        Raises:
            NotHttpError: these bytes cannot be part of an HTTP/1.x response.
        """
        if self._parser is None:
            return self.complete
        bodies = self._bodies
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as problem:
            self.keep_alive = False
            if not self.complete:
                self._parser = None
                raise NotHttpError(str(problem)) from problem
        self._unframed_bytes = 0 if self._bodies > bodies else self._unframed_bytes + len(data)
        if not self.complete and (len(self.headers) > MOST_HEADERS or self._unframed_bytes > UNFRAMED_LIMIT_BYTES):
            self._parser = None
            raise NotHttpError(f"more than {MOST_HEADERS} headers, or {UNFRAMED_LIMIT_BYTES:,} bytes of them")
        if self.complete:
            self._parser = None  # parser and self refer to each other, and the load process runs without a collector
        return self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete and len(self.headers) <= MOST_HEADERS:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._parser is None or self.complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
            return
        self.status = status
        names = dict(self.headers)
        self.chunked = names.get(b"transfer-encoding", b"").lower().endswith(b"chunked")
        self.until_close = not self.chunked and b"content-length" not in names and status not in (204, 304)

    def on_body(self, piece: bytes) -> None:  # noqa: ARG002 - here nobody asks what it says
        self.begun = True
        self._bodies += 1

    def on_message_complete(self) -> None:
        if self.status is not None and not self.complete and self._parser is not None:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, complete or partial.

    Args:
        status: HTTP status; None if the head is incomplete.
        headers: header fields, with names in lower case.
        pieces: pieces of the body, each with the stamp of its read in nanoseconds.
        complete: whether the message ended as announced (or, without an announced length, with an orderly close).
        problem: why the bytes are not HTTP; None for valid HTTP.
    """

    status: int | None
    headers: tuple[tuple[str, str], ...]
    pieces: tuple[tuple[int, bytes], ...]
    complete: bool
    problem: str | None = None

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    def header(self, name: str) -> str | None:
        """Value of the first header of that name (in lower case)."""
        return next((value for key, value in self.headers if key == name), None)


class BodyFraming(Framing):
    """Keeps the body, each piece with the stamp that was set before its bytes were fed."""

    def __init__(self) -> None:
        super().__init__()
        self.stamp_ns = 0
        self.pieces: list[tuple[int, bytes]] = []

    def on_body(self, piece: bytes) -> None:
        super().on_body(piece)
        if not self.complete:
            self.pieces.append((self.stamp_ns, piece))


def read_answer(exchange: Exchange) -> Answer:
    """Parse an exchange read by read, so that every piece of the body keeps the stamp of its read."""
    framing = BodyFraming()
    problem = None
    start = 0
    for stamp_ns, size in zip(exchange.read_ns, exchange.read_bytes, strict=True):
        framing.stamp_ns = stamp_ns
        try:
            framing.feed(exchange.data[start : start + size])
        except NotHttpError as reason:
            problem = str(reason)
            break
        start += size
    return Answer(
        status=framing.status,
        headers=tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in framing.headers),
        pieces=tuple(framing.pieces),
        complete=framing.complete or (framing.until_close and exchange.ending is Ending.COMPLETE),
        problem=problem,
    )


TOO_MANY_REQUESTS = 429
UNAVAILABLE = 503
#: Begin of the message of an engine's admission control → the limit that refused.
ADMISSION_CONTROL = {
    b"engine is currently busy and cannot accept new requests": "max_num_queued_reqs",  # vLLM
    b"reached its prefill token backlog limit": "max_num_queued_tokens",
    b"request queue is full": "max_queued_requests",  # SGLang
}
_NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+", re.ASCII)


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> str | None:
    """Why a service that works refuses a request for now: "HTTP 429"; None for any other answer.

    A status 503 without a word of admission control and without a time to come back is an outage.

    Args:
        headers: by name in lower case.
    """
    if status == TOO_MANY_REQUESTS:
        return "HTTP 429"
    if status != UNAVAILABLE:
        return None
    limit = next((limit for words, limit in ADMISSION_CONTROL.items() if words in body), None)
    if limit is not None:
        return f"HTTP 503, admission control by {limit}"
    return None if retry_after_s(headers, 0.0) is None else "HTTP 503 with Retry-After"


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """How long a service asks the client to wait; None without a valid header.

    `retry-after-ms` outranks `Retry-After`, as in OpenAI's clients. A date counts from the header `Date`, because the
    clocks of server and client may differ. A date in the past means no wait.

    Args:
        headers: by name in lower case.
        now_s: Unix time, for an answer without `Date`.
    """
    if (pause_ms := _number(headers.get("retry-after-ms", ""))) is not None:
        return pause_ms / 1e3
    text = headers.get("retry-after", "")
    if (pause_s := _number(text)) is not None:
        return pause_s
    if (until_s := _date_s(text)) is None:
        return None
    answered_s = _date_s(headers.get("date", ""))
    return max(0.0, until_s - (now_s if answered_s is None else answered_s))


def _number(text: str) -> float | None:
    """A number of at least 0; None for any other text."""
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def _date_s(text: str) -> float | None:
    """Unix time of a date in one of the three forms of RFC 9110, all of them in GMT; None for any other text."""
    from datetime import UTC, datetime
    from email.utils import parsedate_tz

    try:
        parts = parsedate_tz(text)
        return None if parts is None else datetime(*parts[:6], tzinfo=UTC).timestamp() - (parts[9] or 0)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
