"""A server log with a size limit: head and tail are stored, and the bytes in the middle are only counted."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from .streammask import StreamMask

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# Terminal controls (C0, C1), controls of the text direction, and other characters that XML 1.0 forbids.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_TAIL_READ_BYTES = 1 << 20


class BoundedLog:
    """Writes at most about `cap_bytes` to `path`, whatever it is fed; never raises on a full disk.

    The first half goes to `path`, later bytes to two alternating segments beside it, a quarter each.
    `close` joins them: head, a line saying how much is missing, tail.
    """

    def __init__(self, path: Path, cap_bytes: int) -> None:
        self._path = path
        self._current, self._older = _segments(path)
        self._head_left = cap_bytes // 2
        self._segment_bytes = max(1, cap_bytes // 4)
        self._segment_left = 0
        self._file = path.open("wb", buffering=0)
        self.dropped_bytes = 0

    def write(self, data: bytes) -> None:
        head, rest = data[:self._head_left], data[self._head_left:]
        self._head_left -= len(head)
        self._put(head)
        while rest:
            if self._segment_left == 0:
                self._rotate()
            piece, rest = rest[:self._segment_left], rest[self._segment_left:]
            self._segment_left -= len(piece)
            self._put(piece)

    def close(self) -> None:
        self._file.close()
        try:
            tail = b"".join(part.read_bytes() for part in (self._older, self._current) if part.exists())
            if self.dropped_bytes:
                tail = f"\n[... {self.dropped_bytes} bytes left out ...]\n".encode() + tail
            with self._path.open("ab") as whole:
                whole.write(tail)
            for part in (self._older, self._current):
                part.unlink(missing_ok=True)
        except OSError:
            return  # the segments stay where `tail_lines` finds them

    def _rotate(self) -> None:
        self._segment_left = self._segment_bytes
        self._file.close()
        try:
            if self._older.exists():
                self.dropped_bytes += self._older.stat().st_size
            if self._current.exists():
                self._current.replace(self._older)
            self._file = self._current.open("wb", buffering=0)
        except OSError:
            return  # `_put` counts what a closed file cannot take

    def _put(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data):]
        except (OSError, ValueError):
            self.dropped_bytes += len(data)


def tail_lines(path: Path, n_lines: int) -> list[str]:
    """The last lines of a log, finished or still being written, fit for a terminal and for XML 1.0.

    Invalid UTF-8 and characters that XML forbids become U+FFFD, terminal colours go.
    """
    current, older = _segments(path)
    data = b""
    for part in (current, older, path):
        if len(data) < _TAIL_READ_BYTES:
            data = _end_of(part, _TAIL_READ_BYTES - len(data)) + data
    text = data.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return [printable(line) for line in text.removesuffix("\n").split("\n")[-n_lines:]] if text else []


def plain(text: str) -> str:
    """Text that neither controls a terminal nor breaks XML; line ends and tabs stay.

    >>> plain("\\x1b[31mred\\x1b[0m\\x07")
    'red\ufffd'
    """
    return _CONTROL.sub("\ufffd", _ANSI.sub("", text))


def printable(line: str, limit_chars: int = 2000) -> str:
    """One line of plain text, shortened in the middle beyond a limit."""
    line = plain(line)
    if len(line) <= limit_chars:
        return line
    half = limit_chars // 2
    return f"{line[:half]}[... {len(line) - 2 * half} characters ...]{line[-half:]}"


def _segments(path: Path) -> tuple[Path, Path]:
    return path.with_name(path.name + ".tail"), path.with_name(path.name + ".tail-older")


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _end_of(path: Path, n_bytes: int) -> bytes:
    """The last bytes of a regular file; empty for another kind of file, because logs of another machine may hold links
    and FIFOs."""
    try:
        with open(path, "rb", opener=_open_own) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return b""
            file.seek(max(0, file.seek(0, os.SEEK_END) - n_bytes))
            return file.read()
    except OSError:
        return b""


CHUNK_BYTES = 1 << 18


class Drain:
    """Reads a server's output, so that the server never waits for the reader, and masks secrets."""

    def __init__(self, log_path: Path, cap_bytes: int, mask: StreamMask) -> None:
        self._log = BoundedLog(log_path, cap_bytes)
        self._mask = mask
        self.read_end, write_fd = os.pipe()
        self.write_end: BinaryIO = os.fdopen(write_fd, "wb", buffering=0)
        os.set_blocking(self.read_end, False)
        _enlarge(self.read_end)

    def read(self) -> int | None:
        """Take one chunk. Returns its size: 0 at the end of the stream, None while nothing is written."""
        try:
            data = os.read(self.read_end, CHUNK_BYTES)
        except BlockingIOError:
            return None
        self._log.write(self._mask.feed(data))
        return len(data)

    def read_all(self) -> None:
        """Read the current content of the pipe, at most 16 MiB even if a process keeps writing."""
        for _ in range(64):
            if not self.read():
                return

    def last_words(self) -> None:
        """Log the last output of a process that has ended, including an unfinished line."""
        self.read_all()
        self._log.write(self._mask.end_line())

    def close(self) -> None:
        self.read_all()
        self._log.write(self._mask.flush())
        self._log.close()
        os.close(self.read_end)


def _enlarge(fd: int) -> None:
    """A larger pipe rides over our pauses; refused where the user's quota of pipe memory is used up."""
    import fcntl

    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << 20)
