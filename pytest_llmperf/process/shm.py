"""Shared-memory segments that servers leave in /dev/shm: multiprocessing's when killed, vLLM's CPU ranks' always.

A segment is removed only if a process of the unit used it when the segment was first seen, and no process uses the
segment now. Names prove nothing: `sem_open` maps a temporary file and links the final name afterwards, so
/proc/PID/maps shows another name than /dev/shm. Device and inode are compared instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108  where POSIX shared memory lives on Linux
PREFIXES = ("psm_", "sem.mp-", "vllm_dist_", "sglang_loads_")
FileId = tuple[int, int]  # device and inode


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A file in /dev/shm; device and inode distinguish the file from a later file of the same name."""

    name: str
    device: int
    inode: int

    @property
    def file_id(self) -> FileId:
        return self.device, self.inode


@dataclass(frozen=True, slots=True)
class CleanUp:
    """The unused segments that a clean-up removed, and those that the clean-up left.

    Args:
        removed: names of segments that the unit created.
        unproven: names of segments that appeared while the processes ran. Another program may be the
            owner, so the clean-up leaves them.
    """

    removed: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()


class Attribution:
    """Which segments the processes of one unit created, among all that appear from now on.

    The creator of a segment has it open or mapped when its name appears. So each segment is attributed once, when it is
    first seen. A segment that the unit attaches to later stays its creator's.

    Attributes:
        created: segments that the unit created.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._earlier_segments = segments(folder)
        self._seen = set(self._earlier_segments)
        self.created: set[Segment] = set()

    @classmethod
    def of_users(cls, pids: Iterable[int], folder: Path = FOLDER) -> Attribution:
        """The attribution of processes that nothing watched: segments that they use now count as theirs, all other
        segments as foreign."""
        used = used_by(pids, folder)
        attribution = cls(folder)
        attribution.created = {segment for segment in attribution._earlier_segments if segment.file_id in used}
        attribution._earlier_segments -= attribution.created
        return attribution

    def look(self, pids: Iterable[int]) -> set[Segment]:
        """Attribute the segments that appeared since the last look.

        Args:
            pids: the living processes of the unit.

        Returns:
            The segments that the unit created since the last look.
        """
        fresh = segments(self._folder) - self._seen
        if not fresh:
            return set()
        self._seen |= fresh
        used = used_by(pids, self._folder)
        created = {segment for segment in fresh if segment.file_id in used}
        self.created |= created
        return created

    def clean_up(self) -> CleanUp:
        """Remove what the unit created and nobody uses any more; name the other unused segments that appeared."""
        fresh = segments(self._folder) - self._earlier_segments
        if not fresh:
            return CleanUp()
        everybody = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208  faster than Paths
        in_use = used_by(everybody, self._folder)
        unused = sorted(segment for segment in fresh if segment.file_id not in in_use)
        return CleanUp(
            removed=tuple(s.name for s in unused if s in self.created and _remove(self._folder, s)),
            unproven=tuple(s.name for s in unused if s not in self.created),
        )


def segments(folder: Path = FOLDER) -> set[Segment]:
    """All segments of these namings that belong to this uid."""
    segments_here: set[Segment] = set()
    if not folder.is_dir():
        return segments_here
    for path in folder.iterdir():
        if path.name.startswith(PREFIXES):
            with suppress(OSError):  # removed meanwhile
                stat = path.lstat()
                if stat.st_uid == os.getuid():
                    segments_here.add(Segment(path.name, stat.st_dev, stat.st_ino))
    return segments_here


def used_by(pids: Iterable[int], folder: Path = FOLDER) -> set[FileId]:
    """Device and inode of what these processes have mapped, and of what they have open in the folder."""
    return {file_id for pid in pids for file_id in (*_mapped(pid), *_open(pid, folder))}


def _remove(folder: Path, segment: Segment) -> bool:
    path = folder / segment.name
    try:
        stat = path.lstat()
        if (stat.st_dev, stat.st_ino) != segment.file_id:
            return False
        path.unlink()
    except OSError:
        return False
    return True


def _mapped(pid: int) -> Iterator[FileId]:
    """The files that a process maps, from the lines of /proc/PID/maps: address, permissions, offset, device as hex
    major:minor, inode, path."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, _, device, inode, *_ = line.split(maxsplit=5)
        if inode != b"0":
            major, minor = device.split(b":")
            yield os.makedev(int(major, 16), int(minor, 16)), int(inode)


def _open(pid: int, folder: Path) -> Iterator[FileId]:
    """A file elsewhere is not asked for its inode: on a network that no longer answers, that would wait for ever."""
    prefix = f"{folder}/"
    with suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if str(fd.readlink()).startswith(prefix):
                    stat = fd.stat()
                    yield stat.st_dev, stat.st_ino
