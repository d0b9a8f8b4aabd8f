"""The system calls of the supervision, and the steps of a child process before it executes the server."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import NoReturn

IGNORED = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_IN_MOVED_TO, _IN_CREATE = 0x80, 0x100
KILL_WAIT_S = 5.0


def adopt_orphans() -> None:
    """Make this process the parent of all later orphans below it, however they detached themselves."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def watch_new_files(folder: str) -> int | None:
    """A descriptor that becomes readable when a file appears in the folder; None if the kernel refuses one."""
    handle = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if handle < 0:
        return None
    if _libc().inotify_add_watch(handle, os.fsencode(folder), _IN_CREATE | _IN_MOVED_TO) < 0:
        os.close(handle)
        return None
    return int(handle)


def kill_child(child: subprocess.Popen[bytes]) -> None:
    """Kill a child process and wait for its end, at most `KILL_WAIT_S`.

    The wait has a limit because the exception of a signal handler can strike inside `Popen.poll` and leave the lock of
    the `Popen` object locked. `Popen.wait` without a limit would then never return, although the child has ended.
    """
    child.kill()
    with suppress(subprocess.TimeoutExpired):
        child.wait(KILL_WAIT_S)


def write_line(child: subprocess.Popen[bytes], line: str) -> None:
    """Write a line to the stdin pipe of a child process. A child that has ended gets nothing."""
    with suppress(OSError, ValueError):
        if child.stdin is not None:
            child.stdin.write(line.encode() + b"\n")
            child.stdin.flush()


def close_pipes(child: subprocess.Popen[bytes]) -> None:
    """Close the pipes to a child process that has ended."""
    for pipe in (child.stdin, child.stdout, child.stderr):
        with suppress(OSError):  # what was still buffered cannot be written
            if pipe is not None:
                pipe.close()


def end_child(child: subprocess.Popen[bytes], limit_s: float) -> None:
    """Wait for the end of a child process, and kill the child after `limit_s`."""
    try:
        child.wait(limit_s)
    except subprocess.TimeoutExpired:
        kill_child(child)


def interrupt_on_sigterm() -> None:
    """Let a SIGTERM end this process like Ctrl-C. Python's default would skip every teardown."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt("SIGTERM")


def prepare_child(watchdog_pid: int, cpus: Collection[int]) -> None:
    """Run in a child between fork and exec: restore ignored signals, and let the kernel kill the child with the
    watchdog.

    Args:
        watchdog_pid: process id of the watchdog, the parent.
        cpus: CPUs for the child and all descendants; an empty collection allows all CPUs.
    """
    for signum in IGNORED:
        signal.signal(signum, signal.SIG_DFL)
    if cpus:
        os.sched_setaffinity(0, cpus)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != watchdog_pid:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if _libc().prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
