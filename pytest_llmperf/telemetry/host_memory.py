"""The memory of this machine that a server in host memory could still take."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def free_host_memory_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Memory that the kernel calls available, at most what the limit of a container leaves; None if unknown."""
    free = [size for size in (_available(meminfo), _left_in_container(cgroup)) if size is not None]
    return min(free, default=None)


def _available(meminfo: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _left_in_container(cgroup: Path) -> int | None:
    """Control groups of version 2, then of version 1. Memory of cached files counts as left."""
    for folder, limit, used in (
        (cgroup, "memory.max", "memory.current"),
        (cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # "max": without a limit
            return max(0, int((folder / limit).read_text()) - int((folder / used).read_text()) + _cached(folder))
    return None


def _cached(folder: Path) -> int:
    with suppress(OSError, ValueError):
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(fields.get("inactive_file", 0))
    return 0
