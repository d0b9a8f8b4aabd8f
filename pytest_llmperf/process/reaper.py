"""Ends everything below this process: SIGTERM, a grace, SIGKILL, and every exit status collected."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from . import tree
from .unit import Reaped

KILL_LIMIT_NS = 10_000_000_000  # after SIGKILL: what still lives then hangs in the kernel
OTHERS_NS = 3_000_000_000  # what a leader left has as long to end, before SIGKILL; half of a short grace


def alone_ns(grace_ns: int) -> int:
    """How much of a grace is the leader's own, in nanoseconds."""
    return grace_ns - min(OTHERS_NS, grace_ns // 2)


class Reaper:
    """Collects exit statuses all the time, and on `begin` ends what is left.

    As child subreaper this process becomes the parent of every orphan below it, so "no children left"
    (ECHILD) means that nothing is left, however it detached itself.

    Args:
        on_exit: called with pid and wait status of each process that was collected.
        leader_first: SIGTERM goes to the watched process alone, and to all others once the watched process has ended,
            or in the last 3 s of the grace (half of one below 6 s).
    """

    def __init__(self, on_exit: Callable[[int, int], None], *, leader_first: bool = False) -> None:
        self._on_exit = on_exit
        self._leader_first = leader_first
        self._leader: tree.Identity | None = None
        self._reaped_by_identity: dict[tree.Identity, Reaped] = {}
        self._ended: set[tree.Identity] = set()
        self._terminated: set[tree.Identity] = set()
        self._deadline_ns: int | None = None
        self.started_ns = 0

    @property
    def stopping(self) -> bool:
        return self._deadline_ns is not None

    def watch(self, pid: int) -> None:
        """Report on this process even if it ends before the stop begins."""
        stat = tree.read_stat(pid)
        if stat is not None:
            self._leader = stat.identity
            self._note(stat)

    def begin(self, grace_s: float) -> None:
        """Start to end everything. Called again it can only shorten the grace."""
        deadline_ns = time.monotonic_ns() + round(grace_s * 1e9)
        if self._deadline_ns is None:
            self.started_ns = time.monotonic_ns()
        self._deadline_ns = min(self._deadline_ns or deadline_ns, deadline_ns)

    def collect(self) -> bool:
        """Take every exit status there is; returns whether any child is left."""
        while True:
            try:
                peek = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            if peek is None:
                return True
            stat = tree.read_stat(peek.si_pid)  # a zombie still has its name and starttime
            pid, status = os.waitpid(peek.si_pid, 0)
            if stat is not None and (self.stopping or stat.identity in self._reaped_by_identity):
                self._note(stat)
                self._end(stat.identity, tree.describe_status(status))
            self._on_exit(pid, status)

    def step(self) -> bool:
        """One round of signals; returns whether the stop is over."""
        if self._deadline_ns is None or not self.collect():
            return self.stopping
        now_ns = time.monotonic_ns()
        leader_only = self._leader_alone(now_ns)
        for stat in tree.descendants(os.getpid()):
            self._note(stat)
            if not stat.alive:
                continue
            if now_ns >= self._deadline_ns:
                self._reaped_by_identity[stat.identity] = replace(self._reaped_by_identity[stat.identity], sigkill=True)
                tree.send(stat.identity, signal.SIGKILL)
            elif stat.identity not in self._terminated and (stat.identity == self._leader or not leader_only):
                self._terminated.add(stat.identity)
                tree.send(stat.identity, signal.SIGTERM)
                tree.send(stat.identity, signal.SIGCONT)  # a stopped process would take its SIGTERM only later
        return now_ns >= self._deadline_ns + KILL_LIMIT_NS

    def _leader_alone(self, now_ns: int) -> bool:
        """Whether the watched process still has the time in which it ends what is below it itself."""
        if not self._leader_first or self._leader is None or self._deadline_ns is None:
            return False
        in_time = now_ns < self.started_ns + alone_ns(self._deadline_ns - self.started_ns)
        return in_time and tree.is_alive(self._leader)

    def reaped(self) -> list[Reaped]:
        """Every process that is known and has ended."""
        for identity in self._reaped_by_identity:
            if identity not in self._ended and not tree.is_alive(identity):
                self._end(identity, "collected by its own parent")
        return [self._reaped_by_identity[identity] for identity in sorted(self._ended)]

    def survivors(self) -> list[Reaped]:
        return [r for identity, r in sorted(self._reaped_by_identity.items()) if identity not in self._ended]

    def _note(self, stat: tree.Stat) -> None:
        reaped = self._reaped_by_identity.setdefault(
            stat.identity, Reaped(stat.identity.pid, stat.identity.starttime, stat.name, "alive", sigkill=False)
        )
        if reaped.name != stat.name:  # between fork and exec a process bears its parent's name
            self._reaped_by_identity[stat.identity] = replace(reaped, name=stat.name)

    def _end(self, identity: tree.Identity, ending: str) -> None:
        self._ended.add(identity)
        self._reaped_by_identity[identity] = replace(self._reaped_by_identity[identity], ending=ending)
