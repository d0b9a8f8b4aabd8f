"""Emulated engines that start thousands of times: one process per engine, which starts anew with different noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_llmperf.clock import Clock
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.control.transports import PipeControl
from pytest_llmperf.engines.lmcache.emulated import EmulatedLMCache
from pytest_llmperf.engines.lmcache.server import LMCacheServer
from pytest_llmperf.engines.process.emulated import VirtualLauncher
from pytest_llmperf.engines.process.environment import noise_seed
from pytest_llmperf.engines.process.resolution import Resolver
from pytest_llmperf.engines.process.unit import Unit
from pytest_llmperf.engines.server import Server
from pytest_llmperf.load.virtual import VirtualEngine
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.status import Notify
from pytest_llmperf.process.piped import PipedProcess


class EveryWorkload(set[str]):
    """Holds every workload: an emulator is warm from its first step."""

    def __contains__(self, _workload: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class ReusedProcess:
    """A process that is reused for a new server start, with its previous server and the plans that the process
    holds."""

    process: PipedProcess
    server: Server
    plans: set[str] = field(default_factory=set)


class RestartedServer(Server):
    """A server whose process outlives it."""

    def __init__(self, reused: ReusedProcess, engine: VirtualEngine, start_id: int) -> None:
        old = reused.server
        super().__init__(old.reader, old.contact, Unit(old.spec, reused.process),
                         old.contact.client(transport=PipeControl(engine)), start_id=start_id, model=old.model,
                         clock=engine.clock)
        self.engine = engine
        self.unit.launched_ns = engine.begun_ns
        self.plans = reused.plans
        self.facts = old.facts  # of the command line, which is the same
        self.warmed_for = EveryWorkload()
        if old.unit.lmcache is not None:
            self.unit.lmcache = EmulatedLMCache(self.control.client)

    def stop(self, grace_s: float) -> None:  # noqa: ARG002 - the process goes on
        self.unit.stopped = True
        self.control.client.close()


class Restarter:
    """Starts emulated engines: a new process for a new spec, then always that one.

    Args:
        launcher: starts the processes.

    Attributes:
        suite_run: number of the suite run that its starts belong to; their noise follows from it.
    """

    def __init__(self, launcher: VirtualLauncher) -> None:
        self._launcher = launcher
        self._processes: dict[EngineSpec, ReusedProcess] = {}
        self.suite_run = 0

    @property
    def settings(self) -> Settings:
        return self._launcher.settings

    @property
    def clock(self) -> Clock:
        return self._launcher.clock

    @property
    def progress(self) -> Notify:
        return self._launcher.progress

    @property
    def resolver(self) -> Resolver:
        return self._launcher.resolver

    def check(self, spec: EngineSpec) -> None:
        """Raise SpecError where it cannot be started."""
        self._launcher.check(spec)

    def start(self, spec: EngineSpec, start_id: int, lmcache: LMCacheServer | None = None) -> Server:
        """The server as another start of it.

        Raises:
            EngineError: it does not start.
        """
        if spec not in self._processes:
            server = self._launcher.start(spec, start_id, lmcache)
            if not isinstance(server.unit.process, PipedProcess):
                raise TypeError(f"{server} is no emulator behind a pipe")
            self._processes[spec] = ReusedProcess(server.unit.process, server)
        reused = self._processes[spec]
        reused.process.call({"restart": {"noise_seed": noise_seed(self.suite_run, start_id)}})
        return RestartedServer(reused, VirtualEngine(reused.process, self._launcher.clock), start_id)

    def start_together(self, specs: Sequence[EngineSpec], first_id: int) -> list[Server]:
        """The servers as further starts of them.

        Raises:
            EngineError: one does not start.
        """
        return [self.start(spec, first_id + number) for number, spec in enumerate(specs)]

    def close(self) -> None:
        """End the processes."""
        while self._processes:
            self._processes.popitem()[1].server.stop(self.settings.stop_grace_s)
