"""One server at a time, shared by everything that asks for the same spec."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Protocol

from pytest_llmperf.clock import Clock, seconds
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.lmcache import LMCacheServer
from pytest_llmperf.engines.machine_lock import MachineLock
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import HardwareBusy, ServerDied, SpecError, StopFailed
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.status import Note, Tell
from pytest_llmperf.process.leftovers import Sweep, sweep
from pytest_llmperf.process.ports import lock_folder

LOCK_TIMEOUT_S = 3600
LEFTOVERS_TIMEOUT_S = 60.0
LEFTOVERS_POLL_S = 0.2


def lock_of_this_machine() -> Path:
    """The lock of this machine's accelerators, one per user, whatever the project.

    Raises:
        InfrastructureError: no lock can be kept there.
    """
    return lock_folder("llmperf") / "machine.lock"


class Starter(Protocol):
    """What starts servers: `Launcher`, or the emulator's."""

    @property
    def settings(self) -> Settings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def progress(self) -> Tell: ...

    def check(self, spec: EngineSpec, kind: str | None = None) -> None:
        """Raise where it can be seen without a start that this spec cannot be started."""
        ...

    def start(
        self, spec: EngineSpec, start_id: int, kind: str | None = None, lmcache: LMCacheServer | None = None
    ) -> Server:
        """A server that has generated one token under our name; `lmcache`: one that runs already, to be part of it."""
        ...


class EnginePool:
    """Starts, shares and stops servers. An engine takes the whole machine, so one runs at a time; a lock beside
    it makes other processes of this user (xdist workers, a second CI job) wait their turn, and so does one of each
    endpoint.

    Args:
        launcher: how to start one.
        lock_path: the lock of this hardware, with those of endpoints beside it; None: no hardware is used, nobody
            waits for anybody.
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
        self._unended: Server | None = None  # its stop failed
        self._asked: EngineSpec | None = None
        self._kind: str | None = None
        self._endpoints: dict[EngineSpec, Server] = {}
        self._lock_path = lock_path
        self._session = session
        self._lock_timeout_s = lock_timeout_s
        self._machine = None if lock_path is None else self._turn(lock_path, "this machine")
        self._turns: dict[str, MachineLock] = {}  # at endpoints, by their URL

    def __repr__(self) -> str:
        return f"<EnginePool {self.starts} starts, {'idle' if self._server is None else self._server}>"

    @property
    def live_spec(self) -> EngineSpec | None:
        """Spec of the server that runs now, as it was asked for."""
        return None if self._server is None else self._asked

    def check(self, spec: EngineSpec, kind: str | None = None) -> None:
        """Raise SpecError or EnvironmentMissing for what cannot be started; nothing is started or stopped for it."""
        self.launcher.check(self._plant(spec), kind)

    def acquire(
        self, spec: EngineSpec, kind: str | None = None, *, fresh: bool = False, keep_lmcache: bool = False
    ) -> Server:
        """The server of that spec; starts it, after stopping another one, where it does not run yet.

        Args:
            kind: hardware kind that the test runs as; None: the session's.
            fresh: start anew even if one runs.
            keep_lmcache: a fresh start takes over the LMCache server of this spec's running unit, memory and all.

        Raises:
            SpecError: an endpoint was asked for a fresh start, or there is no such model.
            HardwareBusy: somebody else uses the accelerators.
            EngineError: it did not start; nothing is left running.
        """
        self.check(spec, kind)  # before another one stops, and hardware is waited for
        if spec.url is not None:
            return self._attached(spec, fresh=fresh)
        server = self._server
        same = (self._asked, self._kind) == (spec, kind)
        if server is not None and same and self._lives(server) and not fresh:
            server.fresh = False
            return server
        lmcache = server.detach_lmcache() if keep_lmcache and server is not None and same else None
        try:
            self.release()
            self._end_what_survived()
            self._take_hardware()
            started = self._plant(spec)
            self._wait_free(started, kind, 0 if lmcache is None else 1)
            self.starts += 1
            self._server = self.launcher.start(started, self.starts, kind, lmcache)
        except BaseException:
            if lmcache is not None:  # harmless where the start that failed has stopped it
                lmcache.stop(self.launcher.settings.stop_grace_s)
            raise
        self._asked, self._kind, self._server.fresh = spec, kind, fresh
        return self._server

    def release(self) -> None:
        """Stop what runs. The next `acquire` starts anew.

        Raises:
            StopFailed: something of it survived; nothing is started as long as it lives.
        """
        server, self._server = self._server, None
        if server is not None:
            self._unended = server
            server.stop(self.launcher.settings.stop_grace_s)
            self._unended = None

    def close(self) -> None:
        """Stop what runs, and let others have the hardware and the endpoints. The next `acquire` starts anew."""
        try:
            self.release()
        finally:
            self._leave_endpoints()
            if self._machine is not None:
                self._machine.end()

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
        self._take_endpoint(str(spec.url))
        if spec in self._endpoints and self._endpoints[spec].restarted_since():
            self.launcher.progress(Note(f"{spec} was started again by whoever runs it: it is asked anew."))
            self._endpoints.pop(spec).stop(0)
        if spec not in self._endpoints:
            self.starts += 1
            self._endpoints[spec] = self.launcher.start(spec, self.starts)
            self._endpoints[spec].remember_process()
        return self._endpoints[spec]

    def _take_endpoint(self, url: str) -> None:
        if self._lock_path is None:
            return
        if url not in self._turns:
            name = f"endpoint-{sha256(url.encode()).hexdigest()[:16]}.lock"
            self._turns[url] = self._turn(self._lock_path.with_name(name), url)
        self._turns[url].take(self._leave_endpoints)

    def _leave_endpoints(self) -> None:
        """Nobody holds one while waiting: two who wait for what the other one has would wait for ever."""
        while self._endpoints:
            self._endpoints.popitem()[1].stop(0)
        for turn in self._turns.values():
            turn.end()

    def _turn(self, lock_path: Path, what: str) -> MachineLock:
        return MachineLock(lock_path, what, self._session, self._lock_timeout_s, self.launcher.progress)

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
        if self._machine is not None and not self._machine.is_ours:
            self._machine.take(self._leave_endpoints)
            try:
                self._clear_leftovers()
            except BaseException:
                self._machine.end()  # whoever gets it next, we among others, clears away first
                raise

    def _end_what_survived(self) -> None:
        """Two servers would share the machine."""
        if self._unended is None:
            return
        try:
            self._unended.stop(self.launcher.settings.stop_grace_s)
        except StopFailed as error:
            still = f"{self._unended.spec} was stopped and is still on this machine"
            raise HardwareBusy(f"{still}: {error.message}") from error
        self._unended = None

    def _clear_leftovers(self) -> None:
        """End what a killed run left; where its watchdog is doing that, wait: two servers would share the machine."""
        clock = self.launcher.clock
        deadline_ns = clock.now_ns() + seconds(LEFTOVERS_TIMEOUT_S)
        while cleared := self._sweep(clock):
            if cleared.survivors:
                raise HardwareBusy(f"{cleared}. They are still on this machine; look at `ps -ef --forest`.")
            self.launcher.progress(Note(str(cleared)))
            if not cleared.pending:
                return
            if clock.now_ns() > deadline_ns:
                raise HardwareBusy(f"After {LEFTOVERS_TIMEOUT_S:g} s: {cleared}. Look at `ps -ef --forest`.")
            clock.sleep_ns(seconds(LEFTOVERS_POLL_S))
