"""Shared-memory segments that servers leave in /dev/shm: multiprocessing's when killed, vLLM's CPU ranks' always."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108  where POSIX shared memory lives on Linux
PREFIXES = ("psm_", "sem.mp-", "vllm_dist_", "sglang_loads_")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A file in /dev/shm; the inode tells it from a later one of the same name."""

    name: str
    inode: int


def segments(folder: Path = FOLDER) -> set[Segment]:
    """All segments of these namings that belong to this uid."""
    found: set[Segment] = set()
    if not folder.is_dir():
        return found
    for path in folder.iterdir():
        if path.name.startswith(PREFIXES):
            with suppress(OSError):  # removed meanwhile
                stat = path.lstat()
                if stat.st_uid == os.getuid():
                    found.add(Segment(path.name, stat.st_ino))
    return found


def used_by(pids: Iterable[int], folder: Path = FOLDER) -> set[str]:
    """Names of the segments that these processes have mapped or open."""
    names: set[str] = set()
    prefix = f"{folder}/"
    for pid in pids:
        for path in (*_mapped(pid), *_open(pid)):
            if path.startswith(prefix):
                names.add(path.removeprefix(prefix).removesuffix(" (deleted)"))
    return names


def remove_leaked(
    before: set[Segment], used: set[str], folder: Path = FOLDER, *, whole_host: bool | None = None
) -> list[str]:
    """Remove what a server left behind, never what somebody still uses.

    A segment goes if it appeared after `before` was taken, belongs to this uid, and no living process has it
    mapped or open. Where other processes may share /dev/shm without being visible here (a container with the
    host's IPC), it must also have been seen in use by our own processes.

    Args:
        before: the segments that were there before the server started.
        used: names that the server's processes were seen using.
        folder: where the segments are.
        whole_host: whether every process that could use them is visible here; found out where None.

    Returns:
        The names that were removed, sorted.
    """
    fresh = segments(folder) - before
    if not (_sees_whole_host() if whole_host is None else whole_host):
        fresh = {segment for segment in fresh if segment.name in used}
    if not fresh:
        return []
    in_use = used_by((int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()), folder)
    return sorted(s.name for s in fresh if s.name not in in_use and _remove(folder / s.name, s.inode))


def _sees_whole_host() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _remove(path: Path, inode: int) -> bool:
    try:
        if path.lstat().st_ino != inode:
            return False
        path.unlink()
    except OSError:
        return False
    return True


def _mapped(pid: int) -> list[str]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_bytes().splitlines()
    except OSError:
        return []
    return [os.fsdecode(line[line.index(b"/"):]) for line in lines if b"/" in line]


def _open(pid: int) -> list[str]:
    found: list[str] = []
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.append(str(fd.readlink()))
    except OSError:
        return found
    return found
