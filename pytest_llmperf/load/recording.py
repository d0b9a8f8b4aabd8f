"""What the load process leaves behind: an append-only file of frames, whole up to the last one if it dies.

A frame is its kind (one byte), the size of its payload (unsigned 64 bits), the payload. Little-endian throughout.
"""

from __future__ import annotations

import os
import struct
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_llmperf.load.arrivals import BINS, Histogram
from pytest_llmperf.model.exchange import Ending, Exchange
from pytest_llmperf.model.plan import LoadPlan

_FRAME = struct.Struct("<cQ")
# index, intended, sent, ended, ending, reused, attempts, reads, data and error bytes
_EXCHANGE = struct.Struct("<IqqqBBBIQI")
_END = struct.Struct("<qqqqqq")
_START = struct.Struct("<q")
_ENDINGS = tuple(Ending)
_NEVER = -1


@dataclass(frozen=True, slots=True)
class End:
    """Final statistics that a load process records about itself.

    Args:
        ended_ns: end time in ns of CLOCK_MONOTONIC.
        clock_gap_ns: longest time in ns in which the event loop did not run.
        cpu_ns, elapsed_ns: what it used, in how long.
        memory_bytes: largest resident size.
        turnaround_ns: sum of the turnarounds.
        read_delays, stamp_errors, turnarounds: see `LoadReport`.
    """

    ended_ns: int
    clock_gap_ns: int
    cpu_ns: int
    elapsed_ns: int
    memory_bytes: int
    turnaround_ns: int
    read_delays: Histogram
    stamp_errors: Histogram
    turnarounds: Histogram


class RecordingWriter:
    """Appends frames with one system call each; nothing is buffered here."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def start(self, started_ns: int) -> None:
        self._append(b"S", _START.pack(started_ns))

    def exchange(self, done: Exchange) -> None:
        error = (done.error or "").encode()
        head = _EXCHANGE.pack(
            done.index, done.intended_ns, _NEVER if done.sent_ns is None else done.sent_ns, done.ended_ns,
            _ENDINGS.index(done.ending), done.reused, done.attempts, len(done.read_ns), len(done.data), len(error),
        )
        self._append(b"X", head, done.read_ns.tobytes(), done.read_bytes.tobytes(), done.data, error)

    def lag(self, beats_ns: array[int]) -> None:
        self._append(b"L", beats_ns.tobytes())

    def end(self, end: End) -> None:
        numbers = _END.pack(end.ended_ns, end.clock_gap_ns, end.cpu_ns, end.elapsed_ns, end.memory_bytes,
                            end.turnaround_ns)
        histograms = (end.read_delays, end.stamp_errors, end.turnarounds)
        self._append(b"E", numbers, *(histogram.counts.tobytes() for histogram in histograms))
        os.close(self._fd)

    def _append(self, kind: bytes, *parts: bytes) -> None:
        size = sum(map(len, parts))
        written = os.writev(self._fd, (_FRAME.pack(kind, size), *parts))
        if written != _FRAME.size + size:
            raise OSError(f"only {written} of {_FRAME.size + size} bytes could be recorded: is the disk full?")


class Exchanges(Mapping[int, Exchange]):
    """The exchanges of a recording, by index. An exchange is read from the file at each access and stays in no memory.

    The file stays open: exchanges can still be read after the recording was removed.

    Attributes:
        ended_ns: when the last of them ended; None for none.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        self._places: dict[int, tuple[int, int]] = {}  # position and size of the payload
        self._our_ns: Callable[[int], int] | None = None
        self.ended_ns: int | None = None
        if fd is not None:
            weakref.finalize(self, os.close, fd)

    def note(self, place: tuple[int, int], head: bytes) -> None:
        """There is one at that place; `head` is the begin of its payload."""
        index, _, _, ended_ns, *_ = _EXCHANGE.unpack_from(head)
        self._places[index] = place
        self.ended_ns = ended_ns if self.ended_ns is None else max(self.ended_ns, ended_ns)

    def convert(self, our_ns: Callable[[int], int]) -> None:
        """Convert the times of another clock: all times of an exchange move by the same amount, so its latencies stay.

        Args:
            our_ns: our time at a time of that clock.
        """
        self._our_ns = our_ns
        self.ended_ns = None if self.ended_ns is None else our_ns(self.ended_ns)

    def __getitem__(self, index: int) -> Exchange:
        position, size = self._places[index]
        if self._fd is None:
            raise KeyError(index)
        exchange = _read_exchange(memoryview(os.pread(self._fd, size, position)))
        return exchange if self._our_ns is None else _moved(exchange, self._our_ns(exchange.intended_ns))

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(slots=True)
class Recording:
    """A recording read back.

    Attributes:
        started_ns: time zero of the schedule; None where the process died before.
        exchanges: by index, as far as they ended.
        end: None where the process died before.
    """

    started_ns: int | None = None
    exchanges: Exchanges = field(default_factory=Exchanges)
    loop_lag_ns: array[int] = field(default_factory=lambda: array("q"))
    end: End | None = None

    def whole(self, plan: LoadPlan) -> bool:
        """Whether every part of the replay of this plan is there."""
        return self.started_ns is not None and self.end is not None and len(self.exchanges) == len(plan.requests)


def read_recording(path: Path) -> Recording:
    """Read every whole frame, of exchanges only the place; what a dying process left half written is not there."""
    if not path.exists():
        return Recording()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    recording = Recording(exchanges=Exchanges(fd))
    for kind, position, size in _frames(fd, 0):
        if kind == b"X":
            recording.exchanges.note((position, size), os.pread(fd, _EXCHANGE.size, position))
        else:
            _take_frame(recording, kind, memoryview(os.pread(fd, size, position)))
    return recording


class RecordingTail:
    """Reads a recording while it is written, which costs the writer nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def exchanges(self) -> Iterator[Exchange]:
        """Yield the exchanges that ended since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb", buffering=0) as file:
            for kind, position, size in _frames(file.fileno(), self._position):
                self._position = position + size
                if kind == b"X":
                    yield _read_exchange(memoryview(os.pread(file.fileno(), size, position)))


def _frames(fd: int, position: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind of every whole frame from there on, with position and size of its payload."""
    end = os.fstat(fd).st_size
    while position + _FRAME.size <= end:
        kind, size = _FRAME.unpack(os.pread(fd, _FRAME.size, position))
        position += _FRAME.size
        if position + size > end:
            return
        yield kind, position, size
        position += size


def _take_frame(recording: Recording, kind: bytes, payload: memoryview) -> None:
    if kind == b"S":
        (recording.started_ns,) = _START.unpack(payload)
    elif kind == b"L":
        recording.loop_lag_ns.frombytes(payload)
    elif kind == b"E":
        recording.end = _read_end(payload)


def _read_end(payload: memoryview) -> End:
    width = BINS * array("q").itemsize
    starts = range(_END.size, _END.size + 3 * width, width)
    delays, errors, turnarounds = (Histogram(array("q", bytes(payload[at : at + width]))) for at in starts)
    ended_ns, clock_gap_ns, cpu_ns, elapsed_ns, memory_bytes, turnaround_ns = _END.unpack_from(payload)
    return End(ended_ns, clock_gap_ns, cpu_ns, elapsed_ns, memory_bytes, turnaround_ns, delays, errors, turnarounds)


def _moved(exchange: Exchange, intended_ns: int) -> Exchange:
    """The exchange with another intended send time, and all other times moved by the same amount."""
    move_ns = intended_ns - exchange.intended_ns
    return replace(
        exchange,
        intended_ns=intended_ns,
        sent_ns=None if exchange.sent_ns is None else exchange.sent_ns + move_ns,
        ended_ns=exchange.ended_ns + move_ns,
        read_ns=array("q", (read_ns + move_ns for read_ns in exchange.read_ns)),
    )


def _read_exchange(payload: memoryview) -> Exchange:
    (index, intended, sent, ended, ending, reused, attempts, reads, data_bytes,
     error_bytes) = _EXCHANGE.unpack_from(payload)
    stamps, sizes = array("q"), array("q")
    width = reads * stamps.itemsize
    start = _EXCHANGE.size
    stamps.frombytes(payload[start : start + width])
    sizes.frombytes(payload[start + width : start + 2 * width])
    start += 2 * width
    return Exchange(
        index=index,
        intended_ns=intended,
        sent_ns=None if sent == _NEVER else sent,
        ended_ns=ended,
        ending=_ENDINGS[ending],
        read_ns=stamps,
        read_bytes=sizes,
        data=bytes(payload[start : start + data_bytes]),
        reused=bool(reused),
        error=str(payload[start + data_bytes : start + data_bytes + error_bytes], "utf-8") or None,
        attempts=attempts,
    )
