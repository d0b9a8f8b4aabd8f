"""The pipe from a server's stdout and stderr into its log."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from .serverlog import BoundedLog
from .streammask import StreamMask

CHUNK_BYTES = 1 << 18


class Drain:
    """Reads a server's output, so that the server never waits for the reader, and masks secrets."""

    def __init__(self, log_path: Path, cap_bytes: int, mask: StreamMask) -> None:
        self._log = BoundedLog(log_path, cap_bytes)
        self._mask = mask
        self.read_end, write_fd = os.pipe()
        self.write_end: BinaryIO = os.fdopen(write_fd, "wb", buffering=0)
        self.ended = False
        os.set_blocking(self.read_end, False)
        _enlarge(self.read_end)

    def read(self) -> bool:
        """Take one chunk; returns False at the end of the stream."""
        try:
            data = os.read(self.read_end, CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._log.write(self._mask.feed(data))
        return bool(data)

    def read_all(self) -> None:
        """Read the current content of the pipe, at most 16 MiB even if a process keeps writing."""
        for _ in range(64):
            try:
                data = os.read(self.read_end, CHUNK_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            self._log.write(self._mask.feed(data))

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
