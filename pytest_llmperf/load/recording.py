"""What the load process leaves behind: an append-only file of frames, whole up to the last one if it dies.

A frame is its kind (one byte), the size of its payload (unsigned 64 bits) and the payload, a pickled object. The
payload of an exchange begins with its index and its end.
"""

from __future__ import annotations

import os
import pickle
import struct
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_llmperf.load.arrivals import Histogram
from pytest_llmperf.model.exchange import Exchange
from pytest_llmperf.model.plan import LoadPlan

_FRAME = struct.Struct("<cQ")
_PLACE = struct.Struct("<Iq")  # index and ended_ns of an exchange


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
        self._append(b"S", pickle.dumps(started_ns))

    def exchange(self, done: Exchange) -> None:
        self._append(b"X", _PLACE.pack(done.index, done.ended_ns), pickle.dumps(done))

    def lag(self, beats_ns: array[int]) -> None:
        self._append(b"L", pickle.dumps(beats_ns))

    def end(self, end: End) -> None:
        self._append(b"E", pickle.dumps(end))
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
        index, ended_ns = _PLACE.unpack(head)
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
        exchange = _read_exchange(self._fd, position, size)
        return exchange if self._our_ns is None else _moved(exchange, self._our_ns(exchange.intended_ns))

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(slots=True)
class Recording:
    """A recording read back.

    Attributes:
        started_ns: time zero of the schedule; None if the process died before.
        exchanges: by index, as far as they ended.
        end: None if the process died before.
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
            recording.exchanges.note((position, size), os.pread(fd, _PLACE.size, position))
        else:
            _take_frame(recording, kind, pickle.loads(os.pread(fd, size, position)))
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
                    yield _read_exchange(file.fileno(), position, size)


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


def _take_frame(recording: Recording, kind: bytes, content: Any) -> None:  # noqa: ANN401 - what `kind` says
    if kind == b"S":
        recording.started_ns = content
    elif kind == b"L":
        recording.loop_lag_ns += content
    elif kind == b"E":
        recording.end = content


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


def _read_exchange(fd: int, position: int, size: int) -> Exchange:
    exchange: Exchange = pickle.loads(os.pread(fd, size - _PLACE.size, position + _PLACE.size))
    return exchange
