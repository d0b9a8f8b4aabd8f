"""HTTP/1.1 framing as the real server's library writes it, for answers that never see a socket."""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus

from pytest_llmperf.emulator.http.replies import Reply

EVENT_STREAM = "text/event-stream; charset=utf-8"
LAST_CHUNK = b"0\r\n\r\n"


def head(status: int, content_type: str, length: int | None, at_s: float) -> bytes:
    """Status line and headers; without a length the body comes in chunks. `at_s`: seconds since 1970."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"date: {formatdate(at_s, usegmt=True)}",
        "server: uvicorn",
        *([] if length is None else [f"content-length: {length}"]),
        f"content-type: {content_type}",
        *(["transfer-encoding: chunked"] if length is None else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def framed(reply: Reply, at_s: float) -> bytes:
    """A whole answer."""
    return head(reply.status, reply.content_type, len(reply.body), at_s) + reply.body
