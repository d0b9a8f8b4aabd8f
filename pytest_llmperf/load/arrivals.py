"""Arrival times of bytes: kernel receive timestamps on CLOCK_MONOTONIC, error bounds without them, and histograms."""

from __future__ import annotations

import socket
import struct
import time
from array import array
from time import monotonic_ns

ANCILLARY_BYTES = 64
_SO_TIMESTAMPNS = 35  # Linux; the standard library does not name it
_TIMESPEC = struct.Struct("@qq").unpack_from
_BELIEVABLE_NS = 600_000_000_000
_SKEW_NS = 1_000_000    # a stamp may lie so far ahead of its reading by rounding, not more
_UNDISTURBED_NS = 5_000
_TRIES = 100


def ask_for_stamps(connection: socket.socket) -> None:
    """Ask the kernel to send the arrival time of the last bytes with each read. No effect on other systems."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:  # another system, or a sandbox: reads are stamped as they are made
        return


class ReadStamps:
    """Stamps reads, and counts how late the load process read the bytes.

    The kernel stamps with the wall clock. `synchronise` is called before each batch of reads, so a change of the wall
    clock during a run moves no stamp. A kernel stamp before `not_before_ns` or after now is replaced by now.

    Attributes:
        delays: time from the arrival of bytes to their read, for reads with a kernel stamp.
        errors: largest possible delay of each stamp without a kernel stamp: the time since the last poll that did not
            report the bytes.
    """

    def __init__(self) -> None:
        self.delays = Histogram()
        self.errors = Histogram()
        # The kernel begins to stamp shortly after the first socket asks, and stops when the last one has closed.
        self._asking = socket.socket()
        ask_for_stamps(self._asking)
        self._offset_ns = 0
        self._polled_ns = self._silent_ns = monotonic_ns()
        self._undisturbed_ns = _BELIEVABLE_NS
        for _ in range(_TRIES):
            self._undisturbed_ns = min(self._undisturbed_ns, self.synchronise())
        # Some clock sources take longer to read than an interruption elsewhere: what is undisturbed follows from them.
        self._undisturbed_ns = max(_UNDISTURBED_NS, 2 * self._undisturbed_ns)

    def close(self) -> None:
        """Stop asking the kernel for arrival times."""
        self._asking.close()

    def polling(self, *, more: bool = False) -> None:
        """Call this before each poll, when the data of the previous poll have been read.

        Args:
            more: whether the previous poll returned its largest number of sockets. Then further sockets may have had
                data at that time.
        """
        if not more:
            self._silent_ns = self._polled_ns
        self._polled_ns = monotonic_ns()

    def synchronise(self) -> int:
        """Measure how far the wall clock lies from the monotonic one, unless interrupted; how long that took, in ns."""
        before_ns = monotonic_ns()
        wall_ns = time.time_ns()
        after_ns = monotonic_ns()
        took_ns = after_ns - before_ns
        if took_ns < self._undisturbed_ns:
            self._offset_ns = before_ns - wall_ns
        return took_ns

    def stamp(self, ancillary: list[tuple[int, int, bytes]], not_before_ns: int) -> int:
        """When the bytes of a read came, on CLOCK_MONOTONIC."""
        now_ns = monotonic_ns()
        if ancillary:
            seconds, nanoseconds = _TIMESPEC(ancillary[0][2])
            stamp_ns: int = seconds * 1_000_000_000 + nanoseconds + self._offset_ns
            delay_ns = now_ns - stamp_ns
            if stamp_ns >= not_before_ns and -_SKEW_NS < delay_ns < _BELIEVABLE_NS:
                self.delays.add(delay_ns)
                return stamp_ns
        self.errors.add(now_ns - max(self._silent_ns, not_before_ns))
        return now_ns


BIN_BITS = 16  # of nanoseconds
BINS = 16_384  # the last bin counts all durations above 1.07 s


class Histogram:
    """Counts of durations in bins of 65.5 µs: constant memory, and a shift and an addition per value."""

    def __init__(self, counts: array[int] | None = None) -> None:
        self.counts = counts or array("q", bytes(8 * BINS))

    def add(self, duration_ns: int) -> None:
        """Count a duration; a negative duration counts as 0."""
        position = duration_ns >> BIN_BITS
        if not 0 <= position < BINS:
            position = 0 if position < 0 else BINS - 1
        self.counts[position] += 1

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        self.counts = array("q", map(int.__add__, self.counts, other.counts))

    @property
    def total(self) -> int:
        return sum(self.counts)

    def quantile_ns(self, share: float) -> int | None:
        """Upper edge, in ns, of the bin that contains the quantile `share` (0 to 1); None if the histogram is empty."""
        wanted, seen = share * self.total, 0
        for position, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return (position + 1) << BIN_BITS
        return None
