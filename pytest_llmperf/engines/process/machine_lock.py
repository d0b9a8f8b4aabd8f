"""Taking turns at what only one may measure at a time: a lock among this user's processes, and who holds it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pytest_llmperf.clock import SystemClock, attempts
from pytest_llmperf.errors import HardwareBusy, InfrastructureError
from pytest_llmperf.model.status import Notify, Waiting
from pytest_llmperf.process import scratch

POLL_S = 0.2
NOTE_EVERY_S = 5


class MachineLock:
    """A lock on a machine or an endpoint, shared by all processes of this user.

    Args:
        lock_path: lock file, which names its holder.
        what: name of the locked resource for messages: "this machine", "http://host:8000".
        session: id of this session. Workers of the same session wait for each other without a timeout.
        timeout_s: longest wait for a lock of a different session.
        notify: receives the status while the process waits.
        shared: whether all processes of this session may hold the lock at the same time.
    """

    def __init__(
        self, lock_path: Path, what: str, session: str, timeout_s: int, notify: Notify, *, shared: bool = False
    ) -> None:
        self._path = lock_path
        self._lock: int | None = None
        self._what = what
        self._session = session
        self._timeout_s = timeout_s
        self._notify = notify
        self._shared = shared

    @property
    def is_ours(self) -> bool:
        return self._lock is not None

    def take(self, before_waiting: Callable[[], None]) -> None:
        """Wait for the lock; returns at once if this process holds it.

        Args:
            before_waiting: called if another process holds the lock. It must release the locks that this process must
                not hold while it waits.

        Raises:
            HardwareBusy: another run held the lock for longer than the timeout.
            InfrastructureError: the lock file cannot be used.
        """
        if self.is_ours or self._try(0):
            return
        before_waiting()
        waited_s, step_s = 0, min(NOTE_EVERY_S, self._timeout_s)
        while waited_s < self._timeout_s:
            ours = bool(self._session) and self._held_by().startswith(f"{self._session} ")
            self._notify(Waiting(f"another {'worker' if ours else 'run'} uses {self._what}"))
            if self._try(step_s):
                return
            waited_s += 0 if ours else step_s
        raise HardwareBusy(
            f"Another pytest-llmperf run ({self._held_by()}) has used {self._what} for {self._timeout_s} s (lock "
            f"{self._path}). End that run or wait until the run has ended."
        )

    def end(self) -> None:
        """Release the lock; does nothing if this process does not hold it."""
        if self._lock is not None:
            with suppress(OSError):
                if not self._shared or scratch.leave_to_others(self._lock):
                    self._path.unlink()
            os.close(self._lock)
            self._lock = None

    def _try(self, timeout_s: float) -> bool:
        try:
            return any(self._take() or self._join() for _ in attempts(SystemClock(), timeout_s, POLL_S))
        except OSError as error:
            self.end()
            raise InfrastructureError(f"The lock {self._path} cannot be kept: {error}. Free space there, or set "
                                      "TMPDIR to another folder.") from error

    def _take(self) -> bool:
        """Hold the lock if no process holds it now."""
        lock = scratch.lock(self._path)
        if lock is None:
            return False
        self._lock = lock
        os.ftruncate(lock, 0)
        os.write(lock, f"{self._session or 'unnamed'} of process {os.getpid()}".encode())
        if self._shared and not scratch.share(lock, self._path):
            os.close(lock)
            self._lock = None
        return self.is_ours

    def _join(self) -> bool:
        """Hold the lock together with other processes of this session, if they hold it now."""
        if not self._shared:
            return False
        lock = scratch.lock(self._path, shared=True)
        if lock is None:
            return False
        if self._held_by().startswith(f"{self._session} "):
            self._lock = lock
            return True
        os.close(lock)
        return False

    def _held_by(self) -> str:
        """Session and process of the holder, from the lock file."""
        try:
            return self._path.read_text(errors="replace")[:200]
        except OSError:
            return "unnamed"
