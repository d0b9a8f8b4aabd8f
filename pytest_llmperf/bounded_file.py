"""The one reader of files that another program or person may have written: run folders, baselines, traces, settings.

Such a file can be a FIFO, a device, a link out of its folder, or a few bytes that expand to gigabytes. The reader
accepts only regular files inside the named folder, and limits the bytes and the memory that a file may take.
"""

from __future__ import annotations

import errno
import gzip
import os
import stat
import zlib
from pathlib import Path
from typing import BinaryIO, NoReturn

MIB = 2**20
LIMIT_BYTES = 64 * MIB
#: Memory that the values of one JSON text may take in Python.
JSON_LIMIT_BYTES = 256 * MIB
PACKED_LIMIT_BYTES = 1024 * MIB
#: A packed file may take this multiple of its size, beyond a base that each file may take.
PACKED_RATIO, PACKED_BASE_BYTES = 100, 64 * MIB
# What Python holds for each of these characters of a JSON text: a list, a dictionary, an entry, half a text.
_HELD_BYTES = {b"[": 64, b"{": 232, b",": 40, b'"': 32}
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"),
          (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))


class FileRefused(OSError):
    """A file that is not read. Its text is the reason alone."""

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(path: Path, within: Path | None = None) -> BinaryIO:
    """Open a regular file for reading; never blocks, and never opens a device.

    Args:
        within: folder that must contain the file after all links are followed; None for any place.

    Raises:
        OSError: the file is missing, is no regular file, lies elsewhere or cannot be read.
    """
    check_inside(path, within)
    _check_regular(path, os.stat(path))  # noqa: PTH116 - before `open`: opening a device can act on the device
    file = os.fdopen(os.open(path, _FLAGS), "rb")
    try:
        _check_regular(path, os.fstat(file.fileno()))
    except BaseException:
        file.close()
        raise
    return file


def check_inside(path: Path, within: Path | None) -> None:
    """Raise OSError if the path has a null byte or leads out of the folder."""
    if "\0" in str(path):
        _refuse(path, "the path has a null byte")
    if within is not None and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(within)):
        _refuse(path, f"it leads out of the folder {within}")


def read_file(path: Path, within: Path | None = None, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: as `open_regular`; also for a file above the limit.
    """
    with open_regular(path, within) as file:
        stated_bytes = os.fstat(file.fileno()).st_size
        data = file.read(limit_bytes + 1) if stated_bytes <= limit_bytes else b""
    if max(stated_bytes, len(data)) > limit_bytes:
        _refuse(path, f"it has more than {limit_bytes // MIB} MiB, the limit for such a file")
    return data


def read_text(path: Path, within: Path | None = None) -> str:
    """The content of a text file; bytes that are no UTF-8 become U+FFFD."""
    return read_file(path, within).decode("utf-8", "replace")


def read_packed(path: Path, within: Path | None = None) -> bytes:
    """The JSON text in a gzip file. Unpacking ends as soon as the values would take too much memory.

    Raises:
        OSError: as `open_regular`; also if the text is no gzip, or would take too much memory.
    """
    pieces, held = [], 0
    with open_regular(path, within) as packed:
        size = os.fstat(packed.fileno()).st_size
        limit = min(PACKED_LIMIT_BYTES, PACKED_BASE_BYTES + PACKED_RATIO * size)
        try:
            with gzip.GzipFile(fileobj=packed) as file:
                while piece := file.read(MIB):
                    held += held_bytes(piece)
                    if held > limit:
                        _refuse(path, f"its {size:,} bytes would take more than {limit // MIB} MiB of memory")
                    pieces.append(piece)
        except (EOFError, zlib.error) as error:
            _refuse(path, str(error))
    return b"".join(pieces)


def held_bytes(text: bytes) -> int:
    """Upper estimate of the memory that the values of a JSON text take, with the text."""
    return 2 * len(text) + sum(text.count(mark) * size for mark, size in _HELD_BYTES.items())


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "something else")
        _refuse(path, f"it is {kind} and no regular file")


def _refuse(path: Path, problem: str) -> NoReturn:
    raise FileRefused(errno.EINVAL, problem, str(path))
