"""Control requests over sockets, each within limits, or in the virtual time of an emulated engine.

httpx limits each wait for bytes. Neither a server that sends a byte now and then nor an infinite page exceeds such
a limit, so answers have a deadline and a size here.
"""

from __future__ import annotations

import ssl
import threading
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpcore
import httpx

if TYPE_CHECKING:
    from pytest_llmperf.load.virtual import VirtualEngine

_FAILURES = (
    httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError,
    httpcore.UnsupportedProtocol, httpcore.ConnectionNotAvailable,
)  # fmt: skip
_HEAD_BYTES = 128 * 1024  # of the message beside its body; httpcore refuses heads above 100 KiB by itself
_ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS


#: Largest body of an answer, both as sent and unpacked.
ANSWER_BYTES = 16 * 2**20


class AnswerTooLarge(httpx.TransportError):
    """The answer is longer than allowed."""

    def __init__(self) -> None:
        super().__init__(f"the answer is longer than {ANSWER_BYTES / 2**20:g} MiB, the limit for such an answer")


class SocketControl(httpx.BaseTransport):
    """Reads every answer whole, before one deadline and up to one size.

    A request's read timeout is the time for the whole answer: connection, head and body.
    """

    def __init__(self, ssl_context: ssl.SSLContext | None, proxy: tuple[str, int] | None) -> None:
        self._current = threading.local()
        via = None if proxy is None else httpcore.Proxy(f"http://{proxy[0]}:{proxy[1]}")
        self._pool = httpcore.ConnectionPool(ssl_context, via, network_backend=_Backend(self._current))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One request and its whole answer.

        Raises:
            httpx.HTTPError: no answer, or none within the limits.
        """
        timeout_s = request.extensions["timeout"]["read"]
        allowance = _Allowance(time.monotonic() + timeout_s)
        self._current.allowance = allowance
        try:
            status, headers, packed = self._answer(request)
        except httpcore.TimeoutException as problem:
            received = f", {allowance.received:,} bytes came" if allowance.received else ""
            raise httpx.ReadTimeout(f"no whole answer within {timeout_s:g} s{received}", request=request) from problem
        except _FAILURES as problem:
            kind = getattr(httpx, type(problem).__name__, httpx.TransportError)
            raise kind(str(problem), request=request) from problem
        body = _unpacked(packed, httpx.Headers(headers).get_list("content-encoding", split_commas=True))
        plain = [(name, value) for name, value in headers
                 if name.lower() not in (b"content-encoding", b"content-length", b"transfer-encoding")]
        return httpx.Response(status, headers=plain, content=body, request=request)

    def close(self) -> None:
        self._pool.close()

    def _answer(self, request: httpx.Request) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        url = request.url
        http_request = httpcore.Request(
            request.method,
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw, content=request.read(), extensions=request.extensions,
        )
        answer = self._pool.handle_request(http_request)
        try:
            packed, pieces = bytearray(), answer.stream
            if isinstance(pieces, Iterable):
                for piece in pieces:
                    packed += piece
            return answer.status, answer.headers, bytes(packed)
        finally:
            answer.close()


def _unpacked(packed: bytes, encodings: list[str]) -> bytes:
    """The unpacked body, for a server that packs its answer although the request forbids it."""
    body = packed
    for encoding in reversed([encoding for encoding in encodings if encoding not in ("", "identity")]):
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise httpx.DecodingError(f"the answer must not be compressed, got {encoding[:40]!r}")
        try:
            body = zlib.decompressobj(_ZLIB_OR_GZIP).decompress(body, ANSWER_BYTES + 1)
        except zlib.error as problem:
            raise httpx.DecodingError(f"the answer is no {encoding}: {problem}") from problem
    if len(body) > ANSWER_BYTES:
        raise AnswerTooLarge
    return body


class VirtualControl(httpx.BaseTransport):
    """Hands every request to an emulated engine, in its virtual time."""

    def __init__(self, engine: VirtualEngine) -> None:
        self.engine = engine

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One request and its whole answer.

        Raises:
            EngineError: the engine has ended.
        """
        reply = self.engine.answer(request.method, request.url.raw_path.decode(), request.read())
        headers = {"content-type": reply.content_type}
        return httpx.Response(reply.status, headers=headers, content=reply.body, request=request)


@dataclass(slots=True)
class _Allowance:
    """The remaining time and bytes of a request.

    Attributes:
        deadline_s: deadline on the monotonic clock.
        received: number of bytes received so far.
    """

    deadline_s: float
    received: int = 0

    def left_s(self) -> float:
        """Seconds to the deadline.

        Raises:
            httpcore.ReadTimeout: none is left.
        """
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise httpcore.ReadTimeout
        return left_s

    def take(self, data: bytes) -> bytes:
        """Account for received bytes.

        Raises:
            AnswerTooLarge: the answer has too many bytes.
        """
        self.received += len(data)
        if self.received > ANSWER_BYTES + _HEAD_BYTES:
            raise AnswerTooLarge
        return data


class _Backend(httpcore.NetworkBackend):
    """Sockets that keep to the allowance of the request that the current thread makes."""

    def __init__(self, current: threading.local) -> None:
        self._sockets = httpcore.SyncBackend()
        self._current = current

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        left_s = self._current.allowance.left_s()
        return _Stream(self._sockets.connect_tcp(host, port, left_s, local_address, socket_options), self._current)


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, current: threading.local) -> None:
        self._stream = stream
        self._current = current

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the deadline decides
        allowance: _Allowance = self._current.allowance
        return allowance.take(self._stream.read(max_bytes, allowance.left_s()))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        self._stream.write(buffer, self._current.allowance.left_s())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        left_s = self._current.allowance.left_s()
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left_s), self._current)

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)
