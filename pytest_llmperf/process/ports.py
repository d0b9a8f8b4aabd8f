"""A TCP port that no other run on this host takes: below the ephemeral range, locked as long as it is leased."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.errors import InfrastructureError

from . import scratch, tree
from .places import lock_folder

# SGLang draws the port of its process group from 22000 to 29999 before its HTTP server binds ours. Outgoing connections
# take theirs from 32768 up.
PORTS = range(20000, 22000)
HOST = "127.0.0.1"


class PortLease:
    """A port that is ours until `close`, or until this process ends.

    The lock is on an open file: it goes with the process, so a crash leaves no stale lease.
    """

    def __init__(self, port: int, lock_file: Path, lock_fd: int) -> None:
        self.port = port
        self._lock_file = lock_file
        self._lock_fd: int | None = lock_fd

    def close(self) -> None:
        """Give the port back; harmless a second time."""
        if self._lock_fd is not None:
            with suppress(OSError):
                self._lock_file.unlink()
            os.close(self._lock_fd)
            self._lock_fd = None


def reserve_port(rng: random.Random, *, ports: range = PORTS, folder: Path | None = None) -> PortLease:
    """Lease a port that is free on 127.0.0.1.

    Between this and the server's own bind a process that does not take part in the locking may still take the
    port: a server that fails with EADDRINUSE wants a new lease.

    Args:
        rng: where to begin to look.
        ports: the candidates.
        folder: where the lock files are; per user, in the temporary directory, by default.

    Raises:
        InfrastructureError: no port is free, this machine cannot reach itself, or the lock files cannot be kept.
    """
    folder = lock_folder() if folder is None else folder
    check_loopback()
    for port in rng.sample(ports, len(ports)):  # an order of its own for each caller
        lease = _try_lease(port, folder)
        if lease is not None:
            return lease
    raise InfrastructureError(
        f"no free port in {ports.start}-{ports.stop - 1} on {HOST}; lock files are in {folder}; "
        "see which servers still run with `ss -ltnp`"
    )


def check_loopback(host: str = HOST, timeout_s: float = 2.0) -> None:
    """Connect this process to itself, before a server starts that nobody could reach.

    Raises:
        InfrastructureError: the loopback interface is missing or down, or a firewall drops its packets.
    """
    try:
        with socket.create_server((host, 0)) as server:
            socket.create_connection(server.getsockname(), timeout_s).close()
    except OSError as error:
        raise InfrastructureError(
            f"this machine cannot reach itself at {host}: {error.strerror or error}. Every server is measured at this "
            "address. Start the loopback interface (ip link set lo up), and let a firewall pass its packets."
        ) from error


def is_free(port: int) -> bool:
    """Whether a server could bind 127.0.0.1:`port` now, without SO_REUSEADDR."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Listener:
    """Who listens on a port.

    Args:
        uid: user of the socket.
        pid: process id of the socket's owner; None if /proc denies access.
        name: of that process.
    """

    uid: int
    pid: int | None = None
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.name or 'a process'} (pid {self.pid or 'hidden'}, uid {self.uid})"


def who_listens(port: int) -> Listener | None:
    """The process that listens on TCP `port` of this host; None if nobody does."""
    for table in ("tcp", "tcp6"):
        for line in _lines(Path("/proc/net") / table):
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                return _holder(f"socket:[{fields[9]}]", int(fields[7]))
    return None


def _try_lease(port: int, folder: Path) -> PortLease | None:
    lock_file = folder / f"{port}.lock"
    try:
        fd = scratch.lock(lock_file)
    except OSError as error:
        raise InfrastructureError(f"cannot keep port locks in {folder}: {error}; set TMPDIR") from error
    if fd is None:
        return None
    lease = PortLease(port, lock_file, fd)
    if is_free(port):
        return lease
    lease.close()
    return None


def _holder(link: str, uid: int) -> Listener:
    for stat_ in tree.all_stats():
        folder = tree.PROC / str(stat_.identity.pid) / "fd"
        try:
            if any(str(fd.readlink()) == link for fd in folder.iterdir()):
                return Listener(uid, stat_.identity.pid, stat_.name)
        except OSError:
            continue
    return Listener(uid)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()[1:]
    except OSError:
        return []
