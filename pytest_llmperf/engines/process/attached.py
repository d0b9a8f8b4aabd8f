"""The endpoints that a session measures: servers that run already."""

from __future__ import annotations

from collections.abc import Callable

from pytest_llmperf.engines.process.launch import Launcher
from pytest_llmperf.engines.process.machine_lock import MachineLock
from pytest_llmperf.engines.server import Server
from pytest_llmperf.model.engine import Endpoint
from pytest_llmperf.model.status import Note


class AttachedEndpoints:
    """Attaches endpoints, which take nothing of this machine. Other sessions of this user wait for the lock of a URL.

    Args:
        launcher: attaches endpoints.
        lock_of: gives the lock of a URL; None: no locks.
    """

    def __init__(self, launcher: Launcher, lock_of: Callable[[str], MachineLock] | None) -> None:
        self._launcher = launcher
        self._lock_of = lock_of
        self._servers: dict[Endpoint, Server] = {}
        self._locks: dict[str, MachineLock] = {}

    def server(self, spec: Endpoint, next_id: Callable[[], int]) -> Server:
        """The endpoint. The first call attaches it, and so does the first call after a restart of the service.

        Args:
            next_id: gives the id of a start.

        Raises:
            HardwareBusy: another session measures the endpoint.
            EngineError: the endpoint does not answer, or serves another model.
        """
        if self._lock_of is not None:
            if spec.url not in self._locks:
                self._locks[spec.url] = self._lock_of(spec.url)
            self._locks[spec.url].take(self.leave)
        if spec in self._servers and self._servers[spec].counters.restarted_since():
            self._launcher.progress(Note(f"{spec} was started again by whoever runs it: it is asked anew."))
            self._servers.pop(spec).stop(0)
        if spec not in self._servers:
            self._servers[spec] = self._launcher.start(spec, next_id())
            self._servers[spec].counters.remember_process()
        return self._servers[spec]

    def leave(self) -> None:
        """Release all endpoints before a wait for a lock: two sessions that wait for each other would never end."""
        while self._servers:
            self._servers.popitem()[1].stop(0)
        for lock in self._locks.values():
            lock.end()
