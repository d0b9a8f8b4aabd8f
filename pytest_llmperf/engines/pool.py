"""One server at a time, shared by everything that asks for the same spec."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

from filelock import FileLock, Timeout

from pytest_llmperf.clock import Clock, seconds
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.lmcache import LMCacheServer
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import HardwareBusy, ServerDied, SpecError
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.status import Note, Tell, Waiting
from pytest_llmperf.process.leftovers import Sweep, sweep

LOCK_TIMEOUT_S = 3600
LOCK_POLL_S = 0.2
LEFTOVERS_TIMEOUT_S = 60.0
TELL_EVERY_S = 5


def lock_of_this_machine() -> Path:
    """The lock of this machine's accelerators, one per user, whatever the project."""
    folder = Path(tempfile.gettempdir()) / f"llmperf-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / "machine.lock"


class Starter(Protocol):
    """What starts servers: `Launcher`, or the emulator's."""

    @property
    def settings(self) -> Settings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def progress(self) -> Tell: ...

    def start(
        self, spec: EngineSpec, start_id: int, kind: str | None = None, lmcache: LMCacheServer | None = None
    ) -> Server:
        """A server that has generated one token under our name; `lmcache`: one that runs already, to be part of it."""
        ...


class EnginePool:
    """Starts, shares and stops servers. An engine takes the whole machine, so one runs at a time; a lock beside
    it makes other processes of this user (xdist workers, a second CI job) wait their turn.

    Args:
        launcher: how to start one.
        lock_path: the lock of this hardware; None: no hardware is used, nobody waits for anybody.
        sweep: ends what killed runs left on it.
        wait_free: called before each start, with how many processes of ours stay on the accelerators; raises
            HardwareBusy where a stranger is on them.
        plant: what is started for a spec that was asked for: the spec itself unless a regression is planted.
        session: its id: workers of one session wait for each other as long as it takes.
        lock_timeout_s: how long others wait.
    """

    def __init__(
        self,
        launcher: Starter,
        lock_path: Path | None,
        sweep: Callable[[Clock], Sweep] = sweep,
        wait_free: Callable[[EngineSpec, str | None, int], None] = lambda _spec, _kind, _stay: None,
        plant: Callable[[EngineSpec], EngineSpec] = lambda spec: spec,
        *,
        session: str = "",
        lock_timeout_s: int = LOCK_TIMEOUT_S,
    ) -> None:
        self.launcher = launcher
        self._sweep = sweep
        self._wait_free = wait_free
        self._plant = plant
        self.starts = 0
        self._server: Server | None = None
        self._asked: EngineSpec | None = None
        self._kind: str | None = None
        self._endpoints: dict[EngineSpec, Server] = {}
        self._lock = None if lock_path is None else FileLock(lock_path)
        self._holder = None if lock_path is None else lock_path.with_name(f"{lock_path.name}.holder")
        self._session = session
        self._lock_timeout_s = lock_timeout_s

    def __repr__(self) -> str:
        return f"<EnginePool {self.starts} starts, {'idle' if self._server is None else self._server}>"

    @property
    def live_spec(self) -> EngineSpec | None:
        """Spec of the server that runs now, as it was asked for."""
        return None if self._server is None else self._asked

    def acquire(
        self, spec: EngineSpec, kind: str | None = None, *, fresh: bool = False, keep_lmcache: bool = False
    ) -> Server:
        """The server of that spec; starts it, after stopping another one, where it does not run yet.

        Args:
            kind: hardware kind that the test runs as; None: the session's.
            fresh: start anew even if one runs.
            keep_lmcache: a fresh start takes over the LMCache server of this spec's running unit, memory and all.

        Raises:
            SpecError: an endpoint was asked for a fresh start.
            HardwareBusy: somebody else uses the accelerators.
            EngineError: it did not start; nothing is left running.
        """
        if spec.url is not None:
            return self._attached(spec, fresh=fresh)
        server = self._server
        same = (self._asked, self._kind) == (spec, kind)
        if server is not None and same and self._lives(server) and not fresh:
            return server
        lmcache = server.detach_lmcache() if keep_lmcache and server is not None and same else None
        try:
            self.release()
            self._take_hardware()
            started = self._plant(spec)
            self._wait_free(started, kind, 0 if lmcache is None else 1)
            self.starts += 1
            self._server = self.launcher.start(started, self.starts, kind, lmcache)
        except BaseException:
            if lmcache is not None:  # harmless where the start that failed has stopped it
                lmcache.stop(self.launcher.settings.stop_grace_s)
            raise
        self._asked, self._kind = spec, kind
        return self._server

    def release(self) -> None:
        """Stop what runs. The next `acquire` starts anew."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(self.launcher.settings.stop_grace_s)

    def close(self) -> None:
        """Stop what runs and let others have the hardware. The next `acquire` starts anew."""
        try:
            self.release()
            while self._endpoints:
                self._endpoints.popitem()[1].stop(0)
        finally:
            if self._lock is not None:
                self._lock.release(force=True)

    def __enter__(self) -> EnginePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _attached(self, spec: EngineSpec, *, fresh: bool) -> Server:
        """An endpoint takes nothing of this machine: what runs here goes on running."""
        if fresh:
            raise SpecError(f"{spec} cannot be started anew: somebody else runs it. Drop fresh=True.")
        if spec not in self._endpoints:
            self.starts += 1
            self._endpoints[spec] = self.launcher.start(spec, self.starts)
        return self._endpoints[spec]

    def _lives(self, server: Server) -> bool:
        """Whoever measured when a server died or hung was told so; the next one gets another, not the same error."""
        try:
            server.check_alive()
        except ServerDied as death:
            self.launcher.progress(Note(f"{death.message} Starting it again."))
            return False
        if server.hangs:
            self.launcher.progress(Note(f"{server.spec} hangs. Starting it again."))
        return not server.hangs

    def _take_hardware(self) -> None:
        """Wait for the machine; whoever gets it clears away what an earlier, killed run left behind."""
        if self._lock is None or self._holder is None or self._lock.is_locked:
            return
        waited_s, step_s = 0, min(TELL_EVERY_S, self._lock_timeout_s)
        while waited_s < self._lock_timeout_s:
            try:
                self._lock.acquire(timeout=step_s, poll_interval=LOCK_POLL_S)
            except Timeout:
                ours = bool(self._session) and self._held_by().startswith(f"{self._session} ")
                waited_s += 0 if ours else step_s
                self.launcher.progress(Waiting(f"another {'worker' if ours else 'run'} uses this machine"))
            else:
                self._holder.write_text(f"{self._session or 'unnamed'} of process {os.getpid()}")
                self._clear_leftovers()
                return
        raise HardwareBusy(
            f"Another pytest-llmperf run ({self._held_by()}) has used this machine for {self._lock_timeout_s} s (lock "
            f"{self._lock.lock_file}). End it, or run one at a time."
        )

    def _held_by(self) -> str:
        """Session and process of whoever has the machine, as it told."""
        try:
            return "" if self._holder is None else self._holder.read_text(errors="replace")[:200]
        except OSError:
            return "unnamed"

    def _clear_leftovers(self) -> None:
        """End what a killed run left; where its watchdog is doing that, wait: two servers would share the machine."""
        clock = self.launcher.clock
        deadline_ns = clock.now_ns() + seconds(LEFTOVERS_TIMEOUT_S)
        while cleared := self._sweep(clock):
            self.launcher.progress(Note(str(cleared)))
            if not cleared.pending:
                return
            if clock.now_ns() > deadline_ns:
                raise HardwareBusy(f"After {LEFTOVERS_TIMEOUT_S:g} s: {cleared}. Look at `ps -ef --forest`.")
            clock.sleep_ns(seconds(LOCK_POLL_S))
