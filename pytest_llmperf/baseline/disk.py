"""File operations of a baseline update, each durable when it returns. Tests replace the class to inject failures."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


class Disk:
    """Plain files on a POSIX file system."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file and wait until the device has it. Nothing is written through a link or into a FIFO."""
        with open(path, "wb", opener=_open_own) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` by `source` atomically: a reader of `target` gets the whole old or the whole new file."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_empty(self, folder: Path) -> None:
        """Remove a folder unless something is in it."""
        with suppress(OSError):
            folder.rmdir()

    def sync_folder(self, path: Path) -> None:
        """Wait until the device has the names in a folder."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
