"""Questions for a host's time as single datagrams: an answer takes a small part of the time of a call over Ray."""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

_QUESTION = struct.Struct("<16sQ")  # token, number of the question
_ANSWER = struct.Struct("<Qq")      # number of the question, time in ns
_PATIENCE_S = 0.05
_MOST_FAILURES = 5


class ClockPort:
    """Answers the questions of whoever has the token, until `close`.

    Args:
        address: IP address of this host on which to listen.
        clock: what to answer.

    Attributes:
        port: UDP port.
        token: secret that a question must contain.
    """

    def __init__(self, address: str, clock: Callable[[], int]) -> None:
        self.token = secrets.token_bytes(16)
        self._clock = clock
        self._socket = _udp(address)
        self._socket.bind((address, 0))
        self._socket.settimeout(0.5)
        self.port: int = self._socket.getsockname()[1]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="llmperf-clock", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more questions."""
        self._closed.set()
        self._thread.join()
        self._socket.close()

    def _answer(self) -> None:
        while not self._closed.is_set():
            with suppress(OSError):
                question, sender = self._socket.recvfrom(64)
                host_ns = self._clock()
                if len(question) == _QUESTION.size:
                    token, number = _QUESTION.unpack(question)
                    if secrets.compare_digest(token, self.token):
                        self._socket.sendto(_ANSWER.pack(number, host_ns), sender)


class ClockAsker:
    """Asks a `ClockPort`.

    Args:
        address, port, token: of the port.
    """

    def __init__(self, address: str, port: int, token: bytes) -> None:
        self._token = token
        self._number = self._failures = 0
        self._socket = _udp(address)
        self._socket.settimeout(_PATIENCE_S)
        self._place = address, port

    def ask(self) -> int | None:
        """The time of the host; None if no answer came, or if no answer came several times before."""
        if self._failures >= _MOST_FAILURES:
            return None
        self._number += 1
        try:
            self._socket.sendto(_QUESTION.pack(self._token, self._number), self._place)
            while True:
                number, host_ns = _ANSWER.unpack(self._socket.recv(64))
                if number == self._number:
                    self._failures = 0
                    return int(host_ns)
        except (OSError, struct.error):
            self._failures += 1
            return None

    def close(self) -> None:
        """Ask no more."""
        self._socket.close()


def _udp(address: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
