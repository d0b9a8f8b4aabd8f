"""The clock of another load host: asked over UDP, and estimated from the answers. All times are arguments.

We send a question at `sent_ns` of our clock, the host reads `host_ns` on its clock, and the answer arrives at
`received_ns` of our clock. The host read its clock between the two times, so each exchange gives an interval that
contains the difference of the clocks, whatever the delays of the two directions.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

RATE_LIMIT_PPM = 1000         # of one clock against another: the kernel corrects each by at most 500 ppm
RATE_CHANGE_LIMIT_PPM = 50    # of that rate from its mean between two kept exchanges
_WINDOW_NS = 1_000_000_000
_STEPS = 4  # of the search for a host's time: each divides the distance by a thousand or more


@dataclass(frozen=True, slots=True)
class ClockExchange:
    """One question for the time of a host: `sent_ns` and `received_ns` of our clock, `host_ns` of the host's clock."""

    sent_ns: int
    host_ns: int
    received_ns: int

    @property
    def delay_ns(self) -> int:
        return self.received_ns - self.sent_ns

    @property
    def correction_ns(self) -> float:
        """Our time minus the host's time, in the middle of the interval."""
        return (self.sent_ns + self.received_ns) / 2 - self.host_ns


class HostClock:
    """Converts times of a host into our times, with an error bound.

    The exchange with the smallest delay of each second is kept. Between two kept exchanges the correction is
    interpolated, which follows a constant drift exactly.

    Args:
        exchanges: in any order, at least one.

    Attributes:
        contradiction_ns: by how much two kept exchanges contradict each other at a rate of at most `RATE_LIMIT_PPM`,
            because a clock was set or a machine stood still; 0 if they agree.
    """

    def __init__(self, exchanges: Iterable[ClockExchange]) -> None:
        least_delay: dict[int, ClockExchange] = {}
        for exchange in exchanges:
            window = exchange.sent_ns // _WINDOW_NS
            least = least_delay.get(window)
            if least is None or exchange.delay_ns < least.delay_ns:
                least_delay[window] = exchange
        self._kept = sorted(least_delay.values(), key=lambda exchange: exchange.host_ns)
        self._host_ns = [exchange.host_ns for exchange in self._kept]
        self.contradiction_ns = max((_contradiction_ns(*pair) for pair in pairwise(self._kept)), default=0.0)

    def our_ns(self, host_ns: int) -> int:
        """Our time at a time of the host."""
        return host_ns + round(self._at(host_ns)[0])

    def host_ns(self, our_ns: int) -> int:
        """The host's time at one of our times."""
        host_ns = our_ns - round(self._kept[-1].correction_ns)
        for _ in range(_STEPS):
            host_ns = our_ns - round(self._at(host_ns)[0])
        return host_ns

    def error_ns(self, host_ns: int) -> int:
        """Largest possible error of `our_ns` at a time of the host."""
        return round(self._at(host_ns)[1]) + 1

    def largest_error_ns(self, begin_host_ns: int, end_host_ns: int) -> int:
        """Largest value of `error_ns` between two times of the host."""
        edges = [*self._host_ns, *((a + b) // 2 for a, b in pairwise(self._host_ns))]
        inside = [edge for edge in edges if begin_host_ns < edge < end_host_ns]
        return max(self.error_ns(edge) for edge in (begin_host_ns, *inside, end_host_ns))

    def offset_ns(self, host_ns: int) -> int:
        """The host's time minus our time at a time of the host; its largest error is `error_ns`."""
        return -round(self._at(host_ns)[0])

    @property
    def drift_ppm(self) -> tuple[float, float] | None:
        """Rate of the host's clock against our clock minus 1, and its largest error; None from a single exchange."""
        first, last = self._kept[0], self._kept[-1]
        elapsed_ns = last.host_ns - first.host_ns
        if elapsed_ns <= 0:
            return None
        slope = (last.correction_ns - first.correction_ns) / elapsed_ns
        error = (first.delay_ns + last.delay_ns) / 2 / elapsed_ns
        fastest, slowest = 1 / (1 + slope - error), 1 / (1 + slope + error)
        return ((fastest + slowest) / 2 - 1) * 1e6, (fastest - slowest) / 2 * 1e6

    def _at(self, host_ns: int) -> tuple[float, float]:
        """Correction and its largest error."""
        after = bisect_right(self._host_ns, host_ns)
        if 0 < after < len(self._kept):
            return _between(self._kept[after - 1], self._kept[after], host_ns)
        near = self._kept[0] if after == 0 else self._kept[-1]
        away_ns = abs(host_ns - near.host_ns)
        return near.correction_ns, near.delay_ns / 2 + away_ns * RATE_LIMIT_PPM / 1e6


def _between(a: ClockExchange, b: ClockExchange, host_ns: int) -> tuple[float, float]:
    from_a, to_b = host_ns - a.host_ns, b.host_ns - host_ns
    share = from_a / (b.host_ns - a.host_ns)
    correction_ns = (1 - share) * a.correction_ns + share * b.correction_ns
    half_ns = ((1 - share) * a.delay_ns + share * b.delay_ns) / 2
    return correction_ns, half_ns + min(from_a, to_b) * RATE_CHANGE_LIMIT_PPM / 1e6


def _contradiction_ns(a: ClockExchange, b: ClockExchange) -> float:
    possible_ns = (a.delay_ns + b.delay_ns) / 2 + (b.host_ns - a.host_ns) * RATE_LIMIT_PPM / 1e6
    return max(0.0, abs(b.correction_ns - a.correction_ns) - possible_ns)


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
