"""On which CPUs the load runs, which are left to the servers that we start, and the priority of a load process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

from pytest_llmperf.errors import ConfigError

_NICE = -15
_REAL_TIME_LIMIT_US = 2_000_000
_PR_SET_TIMERSLACK = 29


def raise_priority(cpus: Collection[int]) -> None:
    """Take the CPU from a server on the same cores whenever a request is due or bytes have come (root may).

    Real-time scheduling where permitted: a nice value alone only decides within a session, since the kernel groups
    processes by session, and even then a running server keeps the CPU for milliseconds.

    Args:
        cpus: to run on; none: on any.
    """
    if cpus:
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setaffinity(0, cpus)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICE))
    with contextlib.suppress(OSError, AttributeError):
        _enter_real_time()
    with contextlib.suppress(OSError, AttributeError):  # sleep to the microsecond, not to the next 50 of them
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def restore_priority() -> None:
    """Set the nice value of all threads of this process to 0, as far as this machine permits.

    Ray gives its workers a nice value of 15, and the children of a worker inherit this value. Such a process gets 3 %
    of a CPU beside an ordinary program, so the start of a load process takes minutes on a busy machine.
    """
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)


def _enter_real_time() -> None:
    """Give this process real-time priority until it has not slept for two seconds: a saturated load generator must not
    block the machine.

    Not where the machine's own limit would kill it by then.
    """
    import resource  # absent on Windows, where the emulator works

    most_us = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    if most_us != resource.RLIM_INFINITY and most_us <= _REAL_TIME_LIMIT_US:
        return
    signal.signal(signal.SIGXCPU, _leave_real_time)
    resource.setrlimit(resource.RLIMIT_RTTIME, (_REAL_TIME_LIMIT_US, most_us))
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def _leave_real_time(_number: int, _frame: FrameType | None) -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


LEAST_TO_SHARE_OUT = 8  # below, a core taken from the server changes what is measured more than it makes it exact


@dataclass(frozen=True, slots=True)
class Cores:
    """CPU numbers.

    Args:
        load: for load processes.
        servers: for the servers that we start; equal to `load` where all share all.
        reserved: whether the two are apart.
    """

    load: tuple[int, ...]
    servers: tuple[int, ...]
    reserved: bool

    @classmethod
    def shared(cls) -> Self:
        """Everybody runs wherever this process may."""
        cpus = tuple(sorted(_usable()))
        return cls(cpus, cpus, reserved=False)

    @classmethod
    def apart(cls, load: Collection[int], usable: Collection[int]) -> Self:
        """Reserved cores: the CPUs `load` for the load generator, all other usable CPUs for the servers."""
        return cls(tuple(sorted(load)), tuple(sorted(set(usable) - set(load))), reserved=True)

    def __str__(self) -> str:
        if self.reserved:
            return f"load generator on CPU {_listed(self.load)} of its own, servers on {len(self.servers)} others"
        return f"load generator and servers share {len(self.load)} CPUs"


def cores_for(setting: str, processes: int, position: int = 0, usable: Collection[int] | None = None) -> Cores:
    """Share out this machine's CPUs as the setting `load_cpus` says.

    Args:
        setting: "auto" (CPUs of its own for each load process where there are enough), "shared", or CPUs: "6,7".
        processes: load processes.
        position: of this test process among several that measure at the same time: each takes other CPUs.
        usable: CPUs of this process; None: ask the system.

    Raises:
        ConfigError: the CPUs are not there, or none is left for the servers.
    """
    cpus = sorted(_usable() if usable is None else usable)
    if setting == "shared":
        return Cores(tuple(cpus), tuple(cpus), reserved=False)
    if setting != "auto":
        return Cores.apart(_named(setting, cpus), cpus)
    last = len(cpus) - position * processes
    if len(cpus) < LEAST_TO_SHARE_OUT or last - processes < len(cpus) // 2:
        return Cores(tuple(cpus), tuple(cpus), reserved=False)
    return Cores.apart(cpus[last - processes : last], cpus)


def _named(setting: str, usable: list[int]) -> list[int]:
    try:
        wanted = sorted({int(number) for number in setting.split(",")})
    except ValueError:
        raise ConfigError(
            f'load_cpus = {setting!r}: write "auto", "shared", or numbers of CPUs with commas: "6,7".'
        ) from None
    if missing := [number for number in wanted if number not in usable]:
        raise ConfigError(f"load_cpus = {setting!r}: CPU {_listed(missing)} is not usable here. Choose "
                          f"among: {_listed(usable)}.")
    if len(wanted) == len(usable):
        raise ConfigError(f'load_cpus = {setting!r}: no CPU is left for the server. Name fewer, or write "shared".')
    return wanted


def _listed(cpus: Collection[int]) -> str:
    return ", ".join(map(str, cpus))


def _usable() -> set[int]:
    """CPUs that this process may run on; empty if the system does not say."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()
