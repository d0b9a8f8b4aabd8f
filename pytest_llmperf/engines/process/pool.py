"""The servers that run now, shared by everything that asks for the same specs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import TracebackType

from pytest_llmperf.clock import Clock, attempts, require_real_clock, seconds
from pytest_llmperf.engines.lmcache.server import LMCacheServer
from pytest_llmperf.engines.memory.groups import Group, GroupPlans, ShareMemory, never_together
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.process.attached import AttachedEndpoints
from pytest_llmperf.engines.process.launch import Launcher, stop_after
from pytest_llmperf.engines.process.machine_lock import MachineLock
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import EngineError, HardwareBusy, ServerDied, SpecError, StopFailed
from pytest_llmperf.model.engine import Endpoint, EngineSpec
from pytest_llmperf.model.status import Note, Notify, Waiting
from pytest_llmperf.process.leftovers import Sweep, sweep
from pytest_llmperf.process.places import lock_folder

LOCK_TIMEOUT_S = 3600
#: Servers that were launched within this time have the same age.
SAME_AGE_S = 10.0
LEFTOVERS_TIMEOUT_S = 60.0
LEFTOVERS_POLL_S = 0.2


def lock_of_this_machine() -> Path:
    """The lock of this machine's accelerators, one per user, whatever the project.

    Raises:
        InfrastructureError: no lock can be kept there.
    """
    return lock_folder("llmperf") / "machine.lock"


class EnginePool:
    """Starts, shares and stops servers.

    One server runs at a time, except for specs that `acquire` names together. These run at the same time if the memory
    of the GPU suffices; otherwise all but one sleep, if their engines can. A lock makes other processes of this user
    (xdist workers, a second CI job) wait for the machine; another lock does so for each endpoint.

    Args:
        launcher: starts the servers.
        lock_path: lock file of this hardware, in the folder of the endpoints' lock files; None: no lock, because no
            hardware is used.
        sweep: ends processes of killed runs.
        wait_free: called before each start with the number of own processes that stay on the accelerators. It raises
            HardwareBusy if another process uses the accelerators.
        plant: gives the started spec for a requested spec: the same spec unless a regression is planted.
        share_memory: how specs that are named together share the memory. One answer holds for the whole session, so
            that a second start has the flags of the first.
        on_start: called with the requested spec and the server once a server is ready.
        steady_age_s: age of a server on a GPU from which its speed no longer depends on its age.
        session: id of the session; workers of one session wait for each other without a limit.
        lock_timeout_s: longest wait for the lock of another session.
        share_machine: whether the workers of this session measure at the same time, each on its GPUs.
    """

    def __init__(
        self,
        launcher: Launcher,
        lock_path: Path | None,
        sweep: Callable[[Clock], Sweep] = sweep,
        wait_free: Callable[[EngineSpec, int], None] = lambda _spec, _stay: None,
        plant: Callable[[EngineSpec], EngineSpec] = lambda spec: spec,
        *,
        share_memory: ShareMemory = never_together,
        on_start: Callable[[EngineSpec, Server], None] = lambda _spec, _server: None,
        steady_age_s: float = 0.0,
        session: str = "",
        lock_timeout_s: int = LOCK_TIMEOUT_S,
        share_machine: bool = False,
    ) -> None:
        self.launcher = launcher
        self._sweep = sweep
        self._wait_free = wait_free
        self._plant = plant
        self._on_start = on_start
        self._steady_age_s = steady_age_s
        self._plans = GroupPlans(share_memory, launcher.check, launcher.progress)
        self.starts = 0
        self._servers: dict[EngineSpec, Server] = {}  # by the spec that was asked for
        self._unended: list[Server] = []  # their stops failed
        self._kind: str | None = None
        lock = partial(MachineLock, session=session, timeout_s=lock_timeout_s, notify=launcher.progress)
        self._machine = None if lock_path is None else lock(lock_path, "this machine", shared=share_machine)
        self._endpoints = AttachedEndpoints(launcher, None if lock_path is None else lambda url: lock(
            lock_path.with_name(f"endpoint-{sha256(url.encode()).hexdigest()[:16]}.lock"), url))

    def __repr__(self) -> str:
        return f"<EnginePool {self.starts} starts, {list(self._servers.values()) or 'idle'}>"

    @contextmanager
    def launching_under(self, words: tuple[str, ...]) -> Iterator[None]:
        """Put words such as a profiler's before the command of each server that starts in this block.

        Raises:
            EngineError: the servers are emulated in virtual time, so they have no command.
        """
        launcher = self.launcher
        if launcher.emulation is not None and launcher.emulation.clock == "virtual":
            raise EngineError(f"{words[0]}: an engine in virtual time has no command. Add --emulate-clock=real.")
        self.launcher = replace(launcher, under=words)
        try:
            yield
        finally:
            self.launcher = launcher

    def runs(self, spec: EngineSpec) -> bool:
        """Whether a server of this spec, as it was asked for, runs now."""
        return spec in self._servers

    def runs_alone(self, spec: EngineSpec) -> bool:
        """Whether a server of this spec runs now, and no other server."""
        return self._servers.keys() == {spec}

    def pids(self) -> tuple[int, ...]:
        """The living processes of all servers."""
        return tuple(pid for server in self._servers.values() for pid in server.unit.pids())

    def check(self, spec: EngineSpec) -> None:
        """Raise SpecError or EnvironmentMissing for what cannot be started; nothing is started or stopped for it."""
        self.launcher.check(self._plant(spec))

    def model_of(self, engine: EngineSpec | Server) -> ResolvedModel | None:
        """The model of a spec or server; None for an endpoint.

        Raises:
            SpecError: there is no such model.
        """
        if isinstance(engine, Server):
            return engine.model
        return None if engine.is_endpoint else self.launcher.resolver.model(engine.model)

    def acquire(
        self, spec: EngineSpec, *, fresh: bool = False, keep_lmcache: bool = False, beside: Sequence[EngineSpec] = ()
    ) -> Server:
        """The server of that spec. A server that does not run yet is started, after other servers are stopped.

        Args:
            spec: with the hardware kind that the test runs as; without one the session's kind.
            fresh: start anew even if one runs, and alone.
            keep_lmcache: a fresh start takes over the LMCache server of this spec's running unit, memory and all.
            beside: specs that will be measured in turn with this one, the most important first. Their servers start
                together with this one and stay, as far as they fit into the memory or can sleep.

        Raises:
            SpecError: an endpoint was asked for a fresh start, or there is no such model.
            HardwareBusy: another program uses the accelerators.
            EngineError: the server did not start. None of its processes is left.
            UsageError: a library replaces the clock.
        """
        require_real_clock()
        for each in (spec, *beside):
            self.check(each.on(spec.kind))  # before another one stops, and hardware is waited for
        if isinstance(spec, Endpoint):
            if fresh:
                raise SpecError(f"{spec} cannot be started anew: this server runs already. Drop fresh=True.")
            return self._endpoints.server(spec, self._next_id)
        group = Group({spec: self._plant(spec)}) if fresh else self._group(spec, beside)
        server = self._servers.get(spec) if self._kind == spec.kind else None
        if server is not None and self._serves(group) and self._all_live() and not fresh:
            server.fresh = False
            self.wake(server)
            return server
        lmcache = server.unit.detach_lmcache() if keep_lmcache and server is not None else None
        replicas = {} if fresh else self._detached_replicas(group.started[spec])
        try:
            self.release()
            self._end_what_survived()
            self._take_hardware()
            self._start_or_alone(group, spec, lmcache, replicas)
        except BaseException as error:  # harmless where the start that failed has stopped them
            if lmcache is not None:
                lmcache.stop(self.launcher.settings.stop_grace_s)
            for replica in replicas.values():
                stop_after(error, replica, self.launcher.settings.stop_grace_s)
            raise
        self._servers[spec].fresh = fresh
        return self._servers[spec]

    def reason_apart(self, specs: Sequence[EngineSpec], *, in_turn: bool = False) -> str:
        """Why servers of all these specs do not fit into the memory together; see `GroupPlans.reason_apart`."""
        return self._plans.reason_apart({each: self._plant(each) for each in specs}, in_turn=in_turn)

    def lives_beside(self, spec: EngineSpec, others: Sequence[EngineSpec]) -> bool:
        """Whether servers of all these specs run at the same time once `spec` is acquired with `beside=others`."""
        return self._group(spec, others).started.keys() >= {spec, *others}

    def wake(self, server: Server) -> None:
        """Let this server be the one that is awake, where servers of a group take turns.

        Raises:
            EngineError: a server does not sleep or wake up; the next `acquire` starts its spec alone.
        """
        if not server.control.asleep:
            return
        try:
            for other in self._servers.values():
                if other is not server and not other.control.asleep:
                    other.sleep()
            server.control.wake()
        except EngineError as error:
            self._plans.give_up_turns(map(self._plant, self._servers), error.message)
            raise

    def wait_steady(self, servers: Sequence[Server]) -> None:
        """Wait until each of these servers has the age from which its speed is steady. On a CPU none waits."""
        clock = self.launcher.clock
        launches_ns = _launches_ns(servers)
        left_ns = max(launches_ns, default=0) + seconds(self._steady_age_s) - clock.now_ns()
        if launches_ns and left_ns > 0 and servers[0].spec.kind != "cpu":
            names = " and ".join(str(server.spec) for server in servers)
            self.launcher.progress(Waiting(f"until {names} started {self._steady_age_s:g} s ago"))
            clock.sleep_ns(left_ns)

    def release(self) -> None:
        """Stop all servers. The next `acquire` starts a new one.

        Raises:
            StopFailed: a process of a server survived; no server is started before this process has ended.
        """
        failure: StopFailed | None = None
        while self._servers:
            _, server = self._servers.popitem()
            try:
                server.stop(self.launcher.settings.stop_grace_s)
            except StopFailed as error:
                self._unended.append(server)
                failure = failure or error
            except BaseException:
                self._unended.append(server)
                raise
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Stop all servers, and release the locks of the hardware and of endpoints. The next `acquire` starts anew."""
        try:
            self.release()
        finally:
            self._endpoints.leave()
            if self._machine is not None:
                self._machine.end()

    def __enter__(self) -> EnginePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serves(self, group: Group) -> bool:
        """Whether the servers of a group run. A server that is wanted alone has no siblings: they are a condition."""
        alone = len(group.started) == 1
        return group.started.keys() == self._servers.keys() if alone else group.started.keys() <= self._servers.keys()

    def _group(self, spec: EngineSpec, beside: Sequence[EngineSpec]) -> Group:
        """The group of servers that is started for `spec`."""
        specs = [spec, *(other.on(spec.kind) for other in beside if not other.is_endpoint)]
        return self._plans.group({each: self._plant(each) for each in specs})

    def _detached_replicas(self, spec: EngineSpec) -> Mapping[str, Server]:
        """The replicas of the running deployment after the stop of the router, if `spec` differs in the router alone;
        else none."""
        if len(self._servers) != 1:
            return {}
        (requested, server), = self._servers.items()
        replicas = server.detach_replicas(spec, self.launcher.settings.stop_grace_s)
        if replicas:
            del self._servers[requested]
        return replicas

    def _start(self, group: Group, lmcache: LMCacheServer | None, replicas: Mapping[str, Server]) -> None:
        started = list(group.started.values())
        for each in started:
            self.launcher.check(each)  # with its share of the memory, which is a flag
            if not replicas:
                self._wait_free(each, 0 if lmcache is None else 1)
        first_id = self.starts + 1
        self.starts += len(started)
        if len(started) == 1:
            servers = [self.launcher.start(started[0], first_id, lmcache, replicas)]
        elif group.in_turn:
            servers = self._started_in_turn(group, first_id)
        else:
            servers = self.launcher.start_together(started, first_id)
        self._servers = dict(zip(group.started, servers, strict=True))
        self._kind = next(iter(group.started)).kind
        for requested, server in self._servers.items():
            server.requested_spec, server.takes_turns = requested, group.in_turn
            server.siblings = sum(other.gpu_set == requested.gpu_set for other in self._servers) - 1
            server.elsewhere = len(servers) - 1 - server.siblings
            if not group.in_turn:
                self._on_start(self._plant(requested), server)
        launches_ns = _launches_ns(servers)
        if launches_ns and max(launches_ns) - min(launches_ns) > seconds(SAME_AGE_S):  # one started after the other
            self.wait_steady(servers)

    def _started_in_turn(self, group: Group, first_id: int) -> list[Server]:
        """Servers of which the first is awake. It starts last: each start has the GPU without the others."""
        servers: list[Server] = []
        try:
            for number, (requested, spec) in enumerate(reversed(list(group.started.items()))):
                if servers:
                    servers[-1].sleep()
                servers.append(self.launcher.start(spec, first_id + number))
                servers[-1].siblings = number
                self._on_start(self._plant(requested), servers[-1])
        except BaseException as error:
            for server in servers:
                stop_after(error, server, self.launcher.settings.stop_grace_s)
            raise
        return servers[::-1]

    def _start_or_alone(
        self, group: Group, spec: EngineSpec, lmcache: LMCacheServer | None, replicas: Mapping[str, Server]
    ) -> None:
        """Start the group. If a server does not start or sleep in turn, `spec` starts alone, as without a group."""
        try:
            self._start(group, lmcache, replicas)
        except EngineError as error:
            if not group.in_turn:
                raise
            self._plans.give_up_turns(map(self._plant, group.started), error.message)
            self._start(Group({spec: self._plant(spec)}), lmcache, {})

    def _all_live(self) -> bool:
        """Whether all servers live. The measurement of a dead server got an error; the next one starts anew."""
        living = [self._lives(server) for server in self._servers.values()]  # a list: checks all servers
        return all(living)

    def _next_id(self) -> int:
        self.starts += 1
        return self.starts

    def _lives(self, server: Server) -> bool:
        try:
            server.unit.check_alive()
        except ServerDied as death:
            self.launcher.progress(Note(f"{death.message} Starting it again."))
            return False
        if server.unit.hangs:
            self.launcher.progress(Note(f"{server.spec} hangs. Starting it again."))
        return not server.unit.hangs

    def _take_hardware(self) -> None:
        """Wait for the machine's lock, then remove the leftovers of killed runs."""
        if self._machine is not None and not self._machine.is_ours:
            self._machine.take(self._endpoints.leave)
            try:
                _clear_leftovers(self._sweep, self.launcher.clock, self.launcher.progress)
            except BaseException:
                self._machine.end()  # whoever gets it next, we among others, clears away first
                raise

    def _end_what_survived(self) -> None:
        """A server whose stop failed would share the machine with the next one."""
        while self._unended:
            server = self._unended[-1]
            try:
                server.stop(self.launcher.settings.stop_grace_s)
            except StopFailed as error:
                still = f"{server.spec} was stopped and is still on this machine"
                raise HardwareBusy(f"{still}: {error.message}") from error
            self._unended.pop()


def _clear_leftovers(sweep: Callable[[Clock], Sweep], clock: Clock, progress: Notify) -> None:
    """End what a killed run left; where its watchdog is doing that, wait: two servers would share the machine."""
    for _ in attempts(clock, LEFTOVERS_TIMEOUT_S, LEFTOVERS_POLL_S):
        if not (cleared := sweep(clock)):
            return
        if cleared.survivors:
            raise HardwareBusy(f"{cleared}. They are still on this machine; look at `ps -ef --forest`.")
        progress(Note(str(cleared)))
        if not cleared.pending:
            return
    raise HardwareBusy(f"After {LEFTOVERS_TIMEOUT_S:g} s: {cleared}. Look at `ps -ef --forest`.")


def _launches_ns(servers: Sequence[Server]) -> list[int]:
    return [server.unit.launched_ns for server in servers if server.unit.launched_ns is not None]
