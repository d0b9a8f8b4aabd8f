"""Linux processes under /proc: identity (pid and start time), children, and signals to exactly one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """Identifies one process. Linux reuses a pid after its process has ended, but not the pair of pid and start time.

    Args:
        pid: process id.
        starttime: field 22 of /proc/PID/stat, clock ticks since boot.
    """

    pid: int
    starttime: int


@dataclass(frozen=True, slots=True)
class Stat:
    """The part of /proc/PID/stat that supervision needs; see proc(5)."""

    identity: Identity
    name: str
    state: str
    ppid: int

    @property
    def alive(self) -> bool:
        """A zombie has ended; only its exit status is left to collect."""
        return self.state not in "ZX"


def read_stat(pid: int) -> Stat | None:
    """The state of process `pid` in /proc; None if there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes().decode(errors="replace")
    except OSError:
        return None
    before, _, after = text.rpartition(")")
    fields = after.split()
    if len(fields) < 20:
        return None
    return Stat(Identity(pid, int(fields[19])), before.partition("(")[2], fields[0], int(fields[1]))


def identity_of(pid: int) -> Identity | None:
    stat = read_stat(pid)
    return None if stat is None else stat.identity


def is_alive(identity: Identity) -> bool:
    """Whether this very process still runs (a zombie does not)."""
    stat = read_stat(identity.pid)
    return stat is not None and stat.identity == identity and stat.alive


def all_stats() -> Iterator[Stat]:
    for name in os.listdir(PROC):  # noqa: PTH208  a Path per process would cost more than reading it
        if name.isdigit():
            stat = read_stat(int(name))
            if stat is not None:
                yield stat


def descendants(root_pid: int) -> list[Stat]:
    """All descendants of `root_pid`, zombies included, parents before children."""
    children: dict[int, list[Stat]] = {}
    for stat in all_stats():
        children.setdefault(stat.ppid, []).append(stat)
    descendants = list(children.pop(root_pid, ()))
    for stat in descendants:
        descendants += children.pop(stat.identity.pid, ())
    return descendants


def ancestors(pid: int) -> list[int]:
    """The pids above `pid`, nearest first."""
    descendants: list[int] = []
    stat = read_stat(pid)
    while stat is not None and stat.ppid > 0 and stat.ppid not in descendants:
        descendants.append(stat.ppid)
        stat = read_stat(stat.ppid)
    return descendants


def environment_value(pid: int, name: str) -> str | None:
    """Value of the environment variable `name` at the process's exec; None if unset or if /proc denies access."""
    try:
        block = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    prefix = os.fsencode(name) + b"="
    for entry in block.split(b"\0"):
        if entry.startswith(prefix):
            return os.fsdecode(entry[len(prefix):])
    return None


def send(identity: Identity, signum: int, *, tag: tuple[str, str] | None = None) -> bool:
    """Signal exactly this process, or no process.

    The pidfd pins the process before its identity is read, so a process that reuses the pid gets no signal.

    Args:
        identity: the process to signal.
        signum: signal number.
        tag: (variable, value) that the environment of the process must contain.

    Returns:
        Whether the signal was sent.
    """
    try:
        handle = os.pidfd_open(identity.pid)
    except OSError:
        return False
    try:
        if identity_of(identity.pid) != identity:
            return False
        if tag is not None and environment_value(identity.pid, tag[0]) != tag[1]:
            return False
        signal.pidfd_send_signal(handle, signum)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def describe_status(status: int) -> str:
    """A wait status in words: "exit code 2", "signal 9 (SIGKILL)"."""
    return describe_code(os.waitstatus_to_exitcode(status))


def describe_code(code: int) -> str:
    """Text for an exit code of `subprocess`, in which a negative code stands for a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
