"""Which CPU this machine has, and how much of it is ours."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
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
    return Cpu(_model(cpuinfo) or platform.machine(), min(usable, _allowed(quota) or usable))


def _model(cpuinfo: Path) -> str:
    with suppress(OSError):
        for line in cpuinfo.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
    return ""


def _allowed(quota: Path) -> int | None:
    with suppress(OSError, ValueError):
        time_us, period_us = quota.read_text().split()
        return max(1, ceil(int(time_us) / int(period_us)))
    return None
