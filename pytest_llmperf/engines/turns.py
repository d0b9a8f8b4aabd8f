"""Taking turns at what only one may measure at a time: a lock among this user's processes, and who holds it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_llmperf.errors import HardwareBusy, InfrastructureError
from pytest_llmperf.model.status import Tell, Waiting

POLL_S = 0.2
TELL_EVERY_S = 5


class Turn:
    """This process's turn at something, or somebody else's.

    Args:
        lock_path: its lock; who holds it stands beside it.
        what: it is, for people: "this machine", "http://host:8000".
        session: id of this one: its workers wait for each other as long as it takes.
        timeout_s: how long others wait.
        tell: told while it waits.
    """

    def __init__(self, lock_path: Path, what: str, session: str, timeout_s: int, tell: Tell) -> None:
        self._lock = FileLock(lock_path)
        self._holder = lock_path.with_name(f"{lock_path.name}.holder")
        self._what = what
        self._session = session
        self._timeout_s = timeout_s
        self._tell = tell

    @property
    def is_ours(self) -> bool:
        return self._lock.is_locked

    def take(self, before_waiting: Callable[[], None]) -> None:
        """Wait for it; nothing to do where it is ours.

        Args:
            before_waiting: called where somebody else has it: gives back what must not be held while waiting.

        Raises:
            HardwareBusy: another run kept it for too long.
            InfrastructureError: the lock cannot be kept.
        """
        if self.is_ours or self._try(0):
            return
        before_waiting()
        waited_s, step_s = 0, min(TELL_EVERY_S, self._timeout_s)
        while waited_s < self._timeout_s:
            ours = bool(self._session) and self._held_by().startswith(f"{self._session} ")
            self._tell(Waiting(f"another {'worker' if ours else 'run'} uses {self._what}"))
            if self._try(step_s):
                return
            waited_s += 0 if ours else step_s
        raise HardwareBusy(
            f"Another pytest-llmperf run ({self._held_by()}) has used {self._what} for {self._timeout_s} s (lock "
            f"{self._lock.lock_file}). End it, or run one at a time."
        )

    def end(self) -> None:
        """Let others have it; harmless where it is not ours."""
        self._lock.release(force=True)

    def _try(self, timeout_s: float) -> bool:
        try:
            self._lock.acquire(timeout=timeout_s, poll_interval=POLL_S)
            self._holder.write_text(f"{self._session or 'unnamed'} of process {os.getpid()}")
        except Timeout:
            return False
        except OSError as error:
            self.end()
            raise InfrastructureError(f"The lock {self._lock.lock_file} cannot be kept: {error}. Free space there, or "
                                      "set TMPDIR to another folder.") from error
        return True

    def _held_by(self) -> str:
        """Session and process of whoever has it, as it told."""
        try:
            return self._holder.read_text(errors="replace")[:200]
        except OSError:
            return "unnamed"
