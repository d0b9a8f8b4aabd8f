"""Servers that an earlier run could not end: found by the tag in their environment, killed only if they are ours."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmperf.clock import Clock, SystemClock, seconds

from . import shm, tree
from .unit import TAG, WATCHDOG_TAG

_POLL_NS = 10_000_000


@dataclass(frozen=True, slots=True)
class Tag:
    """The owner of a server process.

    Args:
        uid: user that started the server.
        parent: process that started the server.
        nonce: distinguishes the servers of one parent.
    """

    uid: int
    parent: tree.Identity
    nonce: str

    def __str__(self) -> str:
        return f"{self.uid}-{self.parent.pid}-{self.parent.starttime}-{self.nonce}"

    @staticmethod
    def parse(text: str) -> Tag | None:
        """The tag in `text`; None if `text` is not a tag of this package."""
        parts = text.split("-", 3)
        if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts[:3]):
            return None
        return Tag(int(parts[0]), tree.Identity(int(parts[1]), int(parts[2])), parts[3])


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that still runs after the end of the pytest session that started the process."""

    identity: tree.Identity
    name: str
    tag: Tag

    def __str__(self) -> str:
        return f"{self.name} (pid {self.identity.pid}, of the run with pid {self.tag.parent.pid})"


@dataclass(frozen=True, slots=True)
class Sweep:
    """The result of a sweep.

    Args:
        killed: leftovers that the sweep ended.
        survivors: leftovers that even SIGKILL did not end.
        pending: leftovers whose watchdog still works on them; they were left to it.
        shm_removed: names of the shared-memory segments that they had created.
        shm_unproven: names of unused segments that another program may have created; they stay.
    """

    killed: tuple[Leftover, ...] = ()
    survivors: tuple[Leftover, ...] = ()
    pending: tuple[Leftover, ...] = ()
    shm_removed: tuple[str, ...] = ()
    shm_unproven: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.killed or self.survivors or self.pending)

    def __str__(self) -> str:
        parts = (
            ("killed leftovers of an earlier run: ", self.killed),
            ("could not kill: ", self.survivors),
            ("still being ended by their watchdog: ", self.pending),
        )
        sentences = [title + ", ".join(map(str, entries)) for title, entries in parts if entries]
        return "; ".join(sentences) or "no leftovers"


def new_tag(nonce: str) -> Tag:
    """The tag for a server that this process starts."""
    identity = tree.identity_of(os.getpid())
    if identity is None:
        raise OSError("this process is not visible under /proc; supervision needs Linux with /proc mounted")
    return Tag(os.getuid(), identity, nonce)


def tagged(pids: Iterable[int] | None = None) -> Iterator[Leftover]:
    """Living processes of this uid and this pid namespace that bear a tag of this uid.

    Args:
        pids: where to look; everywhere by default. This process and those above it are never reported.
    """
    spared = {os.getpid(), *tree.ancestors(os.getpid())}
    for pid in sorted(set(_own_pids() if pids is None else pids) - spared):
        stat = tree.read_stat(pid)
        text = tree.environment_value(pid, TAG)
        tag = None if text is None else Tag.parse(text)
        if stat is not None and stat.alive and tag is not None and tag.uid == os.getuid() and _same_namespace(pid):
            yield Leftover(stat.identity, stat.name, tag)


def sweep(clock: Clock | None = None, *, limit_s: float = 5.0, pids: Iterable[int] | None = None) -> Sweep:
    """End the servers of this user whose run and whose watchdog have both died.

    Processes of a run that is alive are left alone, and so are those that a watchdog is ending.

    Args:
        clock: for the wait after SIGKILL.
        limit_s: how long that wait may take.
        pids: where to look; everywhere by default.
    """
    if not sys.platform.startswith("linux"):
        return Sweep()  # nothing is supervised elsewhere
    pids = None if pids is None else list(pids)
    orphaned = [process for process in tagged(pids) if not tree.is_alive(process.tag.parent)]
    if not orphaned:
        return Sweep()
    watched = {tree.environment_value(pid, WATCHDOG_TAG) for pid in _own_pids()}  # tags whose watchdog lives
    mine = [leftover for leftover in orphaned if str(leftover.tag) not in watched]
    swept = kill(mine, clock or SystemClock(), limit_s=limit_s)
    return replace(swept, pending=tuple(leftover for leftover in orphaned if leftover not in mine))


def kill(
    leftovers: Iterable[Leftover], clock: Clock, *, limit_s: float = 5.0, segments: shm.Attribution | None = None
) -> Sweep:
    """SIGKILL these processes, each only if pid, starttime and tag still agree, and wait until they have gone.

    Args:
        leftovers: the processes to kill.
        clock: for the wait.
        limit_s: how long to wait.
        segments: which shared memory they created; None: only segments in use by these processes are removed.
    """
    victims = list(leftovers)
    pids = [victim.identity.pid for victim in victims]
    if segments is None:
        segments = shm.Attribution.of_users(pids)
    segments.look(pids)
    for victim in victims:
        tree.send(victim.identity, signal.SIGKILL, tag=(TAG, str(victim.tag)))
    deadline_ns = clock.now_ns() + seconds(limit_s)
    while any(tree.is_alive(v.identity) for v in victims) and clock.now_ns() < deadline_ns:
        clock.sleep_ns(_POLL_NS)
    cleaned = segments.clean_up()
    return Sweep(
        killed=tuple(v for v in victims if not tree.is_alive(v.identity)),
        survivors=tuple(v for v in victims if tree.is_alive(v.identity)),
        shm_removed=cleaned.removed,
        shm_unproven=cleaned.unproven,
    )


def _own_pids() -> list[int]:
    uid = os.getuid()
    pids = []
    for entry in tree.PROC.iterdir():
        with suppress(OSError):  # ended meanwhile
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                pids.append(int(entry.name))
    return pids


def _same_namespace(pid: int) -> bool:
    """A tag's parent pid means something only in the pid namespace in which it was written."""
    try:
        return Path(f"/proc/{pid}/ns/pid").readlink() == Path("/proc/self/ns/pid").readlink()
    except OSError:
        return False
