"""A load process runs as soon as it has something to do, as far as this machine permits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Collection
from pathlib import Path
from types import FrameType

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
    """Until it has not slept for two seconds: a saturated load generator must not take the machine with it.

    Not where the machine's own limit would kill it by then.
    """
    most_us = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    if most_us != resource.RLIM_INFINITY and most_us <= _REAL_TIME_LIMIT_US:
        return
    signal.signal(signal.SIGXCPU, _leave_real_time)
    resource.setrlimit(resource.RLIMIT_RTTIME, (_REAL_TIME_LIMIT_US, most_us))
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def _leave_real_time(_number: int, _frame: FrameType | None) -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
