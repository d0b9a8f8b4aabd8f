"""The few things that an update does to a file system, each durable when it returns. Tests let them fail one by one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class Disk:
    """Plain files on a POSIX file system."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file and wait until the device has it."""
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Put `source` in the place of `target`: whoever opens that sees either, whole."""
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
