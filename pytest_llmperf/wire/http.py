"""HTTP/1.1 answers, framed by httptools (llhttp, the parser of Node.js)."""

from __future__ import annotations

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
