"""Reads the CPU model, the usable cores, the busy and stolen shares of CPU time, and the free memory of the host."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from pytest_llmperf.model.telemetry import CpuUse

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def free_host_memory_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Memory that the kernel calls available, at most what the limit of a container leaves; None if unknown."""
    free = [size for size in (_available(meminfo), _left_in_container(cgroup)) if size is not None]
    return min(free, default=None)


def _available(meminfo: Path) -> int | None:
    kibibytes = _field(meminfo, "MemAvailable").removesuffix(" kB")
    return int(kibibytes) * 1024 if kibibytes.isdecimal() else None


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


CPUINFO = Path("/proc/cpuinfo")
STAT = Path("/proc/stat")
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: "200000 100000" are two cores, "max 100000" all


@dataclass(frozen=True, slots=True)
class Cpu:
    """A CPU.

    Args:
        model: as the kernel names it; the architecture where it does not.
        cores: that this process may use, by affinity and by the quota of its container.
    """

    model: str
    cores: int


def read_cpu(cpuinfo: Path = CPUINFO, quota: Path = QUOTA) -> Cpu:
    """The CPU that this process runs on."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Cpu(_field(cpuinfo, "model name") or platform.machine(), min(usable, _allowed(quota) or usable))


def _field(table: Path, wanted: str) -> str:
    """The first value of a name in a file with lines "name: value"; "" where it is missing."""
    with suppress(OSError):
        for line in table.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == wanted:
                return " ".join(value.split())
    return ""


def _allowed(quota: Path) -> int | None:
    with suppress(OSError, ValueError):
        time_us, period_us = quota.read_text().split()
        return max(1, ceil(int(time_us) / int(period_us)))
    return None


def use_from_now(stat: Path = STAT) -> Callable[[], CpuUse | None]:
    """Start to count CPU time. The returned function gives the use since then; None without CPU statistics.

    The columns are proc_stat(5)'s: user, nice, system, idle, iowait, irq, softirq, steal. Later ones are guests', whose
    time is in the first two already.
    """
    first_ticks = _ticks(stat)

    def use() -> CpuUse | None:
        after = _ticks(stat)
        if first_ticks is None or after is None:
            return None
        spent = [late - early for early, late in zip(first_ticks, after, strict=True)]
        user, nice, system, _idle, _iowait, irq, softirq, steal = spent
        total = sum(spent)
        # The kernel can reduce the idle time, and without new ticks there is no share.
        return CpuUse((user + nice + system + irq + softirq) / total, steal / total) if total > 0 else None

    return use


def _ticks(stat: Path) -> tuple[int, ...] | None:
    with suppress(OSError, ValueError):
        name, *numbers = stat.read_text().partition("\n")[0].split()
        ticks = tuple(map(int, numbers[:8]))
        return ticks if name == "cpu" and len(ticks) == 8 else None
    return None
