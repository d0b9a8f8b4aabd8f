"""One server at a time, shared by everything that asks for the same spec."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from pytest_llmperf.engines.launch import Launcher
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import HardwareBusy
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.process.leftovers import sweep

LOCK_TIMEOUT_S = 3600
LOCK_POLL_S = 0.2
TELL_EVERY_S = 30


class EnginePool:
    """Starts, shares and stops servers. An engine takes the whole machine, so one runs at a time; a lock beside
    it makes other processes of this user (xdist workers, a second CI job) wait their turn.

    Args:
        launcher: how to start one.
        lock_path: the lock of this hardware.
    """

    def __init__(self, launcher: Launcher, lock_path: Path) -> None:
        self.launcher = launcher
        self.starts = 0
        self._server: Server | None = None
        self._endpoints: dict[EngineSpec, Server] = {}
        self._lock = FileLock(lock_path)

    def __repr__(self) -> str:
        return f"<EnginePool {self.starts} starts, {'idle' if self._server is None else self._server.spec}>"

    @property
    def live_spec(self) -> EngineSpec | None:
        """Spec of the server that runs now."""
        return None if self._server is None else self._server.spec

    def acquire(self, spec: EngineSpec, kind: str | None = None, *, fresh: bool = False) -> Server:
        """The server of that spec; starts it, after stopping another one, where it does not run yet.

        Args:
            kind: hardware kind that the test runs as.
            fresh: start anew even if one runs.
        """
        if spec.url is not None:
            return self._attached(spec, kind)
        if self._server is not None and self._server.spec == spec and not fresh:
            self._server.check_alive()
            return self._server
        self.release()
        self._take_hardware()
        self.starts += 1
        self._server = self.launcher.start(spec, self.starts, kind)
        return self._server

    def release(self) -> None:
        """Stop what runs. The next `acquire` starts anew."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(self.launcher.settings.stop_grace_s)

    def close(self) -> None:
        """Stop what runs and let others have the hardware."""
        try:
            self.release()
            for endpoint in self._endpoints.values():
                endpoint.stop(0)
        finally:
            self._lock.release(force=True)

    def __enter__(self) -> EnginePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _attached(self, spec: EngineSpec, kind: str | None) -> Server:
        """An endpoint takes nothing of this machine: what runs here goes on running."""
        if spec not in self._endpoints:
            self.starts += 1
            self._endpoints[spec] = self.launcher.start(spec, self.starts, kind)
        return self._endpoints[spec]

    def _take_hardware(self) -> None:
        """Wait for the machine; whoever gets it clears away what an earlier, killed run left behind."""
        if self._lock.is_locked:
            return
        for waited_s in range(0, LOCK_TIMEOUT_S, TELL_EVERY_S):
            try:
                self._lock.acquire(timeout=TELL_EVERY_S, poll_interval=LOCK_POLL_S)
            except Timeout:
                seconds = waited_s + TELL_EVERY_S
                self.launcher.progress(f"waiting for another run to release this machine, {seconds} s")
            else:
                if cleared := sweep(self.launcher.clock):
                    self.launcher.progress(str(cleared))
                return
        raise HardwareBusy(
            f"Another pytest-llmperf run has used this machine for {LOCK_TIMEOUT_S} s (lock {self._lock.lock_file}). "
            "End it, or run one at a time."
        )
