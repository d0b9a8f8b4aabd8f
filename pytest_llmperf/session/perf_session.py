"""The state that all tests of one process share."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.clock import Clock, SystemClock, VirtualClock
from pytest_llmperf.config.emulation import Emulation
from pytest_llmperf.config.settings import Settings, with_price_of_kind
from pytest_llmperf.engines.adapters import adapter_of, check_configured
from pytest_llmperf.engines.deployment.launcher import DeploymentLauncher
from pytest_llmperf.engines.memory.measured import MemoryRecords
from pytest_llmperf.engines.process.planted_flags import PlantedFlag, with_planted_flags
from pytest_llmperf.engines.process.pool import EnginePool, lock_of_this_machine
from pytest_llmperf.load.cores import Cores, cores_for
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.load.transport import Transport
from pytest_llmperf.model.engine import REFERENCE, EngineSpec
from pytest_llmperf.model.status import Note, Notify
from pytest_llmperf.process.places import remarks
from pytest_llmperf.results.conditions import field_rules
from pytest_llmperf.results.measurement import Measurement, TestResult
from pytest_llmperf.session.gpu_layout import GpuLayout
from pytest_llmperf.session.ledger import Ledger
from pytest_llmperf.session.provenance import host_digest
from pytest_llmperf.session.provenance import session_id as new_session_id
from pytest_llmperf.session.replay import Replayer, stream_limits
from pytest_llmperf.session.run_folder import RunFolder
from pytest_llmperf.session.server_gpus import ALONE, ServerGpus
from pytest_llmperf.session.stored_baselines import Baselines
from pytest_llmperf.telemetry.accelerators import Accelerators
from pytest_llmperf.telemetry.cpu import use_from_now
from pytest_llmperf.telemetry.hardware import Hardware

if TYPE_CHECKING:
    from pytest_llmperf.load.ray_hosts import RayLoad


#: Age at which the speed of a server no longer depends on its age. vLLM 0.26.0 on an H200: each run within 103 s of the
#: start of the process was 2 to 4 % slower than each run after 144 s (docs/measured/h200_servers.md).
STEADY_AGE_S = 150.0


class MeasuringTest(Protocol):
    """An execution of a test, as far as a session and a series need it: its test id and hardware kind."""

    session: PerfSession
    test: str
    kind: str

    @property
    def measurements(self) -> list[Measurement]:
        """Measurements so far."""
        ...

    def write(self) -> None:
        """Store what was measured."""
        ...


def _ray_load(settings: Settings) -> RayLoad | None:
    """What runs load processes on other hosts; None if they run on this machine."""
    if not settings.load_hosts:
        return None
    from pytest_llmperf.load.ray_hosts import RayLoad

    return RayLoad(settings.load_hosts, settings.load_processes, settings.load_cpus)


class PerfSession:
    """Settings, hardware, the pool of servers, the run folder.

    Args:
        steady_age_s: as in `EnginePool`. Real-time emulation has servers of any age.
    """

    def __init__(
        self,
        settings: Settings,
        root: Path,
        hardware: Hardware,
        notify: Notify,
        worker: str = "",
        *,
        clock: Clock | None = None,
        transport: Transport | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        rng: random.Random | None = None,
        emulation: Emulation | None = None,
        session_id: str | None = None,
        planted: tuple[PlantedFlag, ...] = (),
        on_begin: Callable[[Path], None] = lambda _: None,
        references: Collection[str] = (),
        steady_age_s: float = STEADY_AGE_S,
    ) -> None:
        check_configured(settings.engines)
        self.settings = settings = with_price_of_kind(settings, hardware.kind)
        self.hardware = hardware
        self.references = frozenset(references)  # engines with a reference build, which comparisons are made against
        self.planted = planted  # over the flags of every server, to see whether the suite notices
        self.notify = notify
        self.root = root
        self.clock = clock or SystemClock()
        virtual = emulation if emulation is not None and emulation.clock == "virtual" else None
        self.cpu_use = use_from_now if virtual is None else None
        cores = Cores.shared() if virtual or settings.load_hosts else self._cores(worker)
        self._ray = _ray_load(settings)
        self.transport = transport or ProcessTransport(
            processes=settings.load_processes, cores=cores, loading=None if self._ray is None else self._ray.load)
        if transport is None and cores.reserved:
            self.notify(Note(str(cores)))
        self.now = now
        self.rng = rng or random.Random()
        self.ledger = Ledger()
        self.resumed: Mapping[str, TestResult] = {}  # test → its result in the run folder where this session goes on
        self._workers: Mapping[str, str] = {}  # test → the worker that names its file in the resumed run folder
        self._layouts: dict[EngineSpec, GpuLayout] = {}
        self._executions: dict[str, list[MeasuringTest]] = {}
        self.id = session_id or new_session_id(now(), self.rng)
        self.worker = re.sub(r"[^A-Za-z0-9_-]+", "-", worker)  # of xdist; all of them write into one folder
        store = Store(root / settings.baselines_dir)
        self.host = host_digest(hardware, virtual=virtual is not None)
        self.baselines = Baselines(store, self.host, field_rules(settings))
        self.accelerators = Accelerators(
            hardware, self.clock, notify, settings.gpu_interval_s, round(settings.gpu_free_limit_mib * 2**20),
            settings.gpu_free_timeout_s,
        )
        self.folder = RunFolder(settings, root, self.id, host=self.host, now=now, notify=notify, on_begin=on_begin)
        self.run_dir = self.folder.path
        self.gpus = ServerGpus(settings, hardware, self.accelerators, self.folder.add_canary,
                               compares=bool(self.references))
        if virtual is not None:
            self.pool = self._in_virtual_time(root, virtual, steady_age_s)
        else:
            launcher = DeploymentLauncher(
                settings, root, self.run_dir, hardware.kind, self.clock, self.rng, notify, emulation,
                cpus=cores.servers if cores.reserved else (), worker=self.worker, gpus=self.gpus.of,
                shown=self.gpus.shown)
            self.gpus.memories = MemoryRecords(self.run_dir.parent, launcher.version)
            # An emulator in real time takes nothing of this machine's accelerators.
            lock = None if emulation else lock_of_this_machine()
            for remark in [] if lock is None else remarks(lock):
                notify(Note(remark))
            self.pool = EnginePool(launcher, lock, wait_free=self.gpus.wait_free, plant=self._plant,
                                   share_memory=self.gpus.share, on_start=self.gpus.measure_memory, session=self.id,
                                   steady_age_s=0.0 if emulation else steady_age_s,
                                   share_machine=hardware.shared_by > 1)

    def _cores(self, worker: str) -> Cores:
        """CPUs for the load and for servers; workers that measure at the same time take different ones."""
        number = worker.removeprefix("gw")
        position = int(number) if number.isdigit() and self.hardware.shared_by == 1 else 0
        loads = len(self.hardware.gpus) if self.references and not self.hardware.emulated else 1  # at the same time
        return cores_for(self.settings.load_cpus, self.settings.load_processes * max(1, loads), position)

    def _in_virtual_time(self, root: Path, emulation: Emulation, steady_age_s: float) -> EnginePool:
        """The emulator behind the same seams: clock, transport and launcher."""
        from pytest_llmperf.engines.process.emulated import VirtualLauncher
        from pytest_llmperf.load.virtual import VirtualEngine, VirtualTransport

        clock, engines, begun = VirtualClock(), dict[str, VirtualEngine](), self.now()
        self.clock = clock
        self.transport = VirtualTransport(engines)
        self.now = lambda: begun + timedelta(microseconds=clock.now_ns() // 1000)
        launcher = VirtualLauncher(self.settings, root, self.run_dir, emulation.kind, clock, self.rng, self.notify,
                                   emulation, worker=self.worker, engines=engines)
        return EnginePool(launcher, lock_path=None, plant=self._plant, share_memory=self.gpus.share,
                          steady_age_s=steady_age_s)

    @property
    def replayer(self) -> Replayer:
        """A replayer with the transport, limits and telemetry of this session."""
        return Replayer(
            self.transport,
            self.now,
            self.clock,
            stream_limits(self.settings),
            self.settings.measure_timeout_s,
            watched=lambda server: self.gpus.watched(server, self.pool.pids),
            fresh_connections=self.settings.connections == "fresh",
            quotes_answers=self.settings.quote_answers,
            cpu_use=self.cpu_use,
            rng=self.rng,
            ledger=self.ledger,
            gpu_costs=lambda server: self.gpus.costs(server.spec),
        )

    def reference_of(self, spec: EngineSpec) -> EngineSpec | None:
        """The same specification on the reference build; None if no reference build was named for this engine."""
        if spec.engine not in self.references or spec.installation:
            return None
        return spec.with_installation(REFERENCE)

    def beside(self, spec: EngineSpec, *, compares: bool) -> tuple[EngineSpec, ...]:
        """The specs whose servers start together with the server of this spec.

        These are the reference build and, in a test that compares the builds, both builds on further GPUs. There are
        none in a session without a reference build.
        """
        reference = self.reference_of(spec)
        if reference is None or not compares:
            return () if reference is None else (reference,)
        (first, *_) = self.layout(spec).placements(spec, reference)
        return tuple(each for pair in first for each in pair if each != spec)

    def layout(self, spec: EngineSpec) -> GpuLayout:
        """The GPUs on which a spec and its reference build run when they are compared. It is said once, with its
        reason.

        The builds are compared on several GPU sets at the same time if these are free. Where a set has no memory for
        both builds, each build takes a set and they exchange these sets.
        """
        reference, sets = self.reference_of(spec), self.gpus.sets(spec)
        alone = spec.lmcache is not None or spec.servers > 1 or self.settings.resident_servers not in ("auto", "share")
        if reference is None or alone or len(sets) == 1:
            return GpuLayout()
        if spec not in self._layouts:
            reason = self.pool.reason_apart([spec, reference])
            self._layouts[spec] = layout = GpuLayout(sets[: len(sets) // 2 * 2] if reason else sets, bool(reason))
            self.notify(Note(f"{spec} and its reference build are compared on {len(layout.sets)} GPU sets at the same "
                             f"time{', and exchange them' if reason else ''}."))
        return self._layouts[spec]

    def reason_apart(self, specs: Sequence[EngineSpec]) -> str:
        """Why each of these specs runs alone in a test that names them together; "" if their servers live together.

        The servers share the memory. Servers that start one after the other save no time and differ in age. So servers
        that sleep in turn, or of an engine that sizes its memory by what is free, need the setting `resident_servers`.
        """
        if any(each.is_endpoint for each in specs):
            return "a server that already runs is measured as it is"
        if any(each.servers > 1 for each in specs):
            return ALONE
        if any(each.kind != specs[0].kind for each in specs):
            return "the servers are measured on different hardware kinds"
        wanted = self.settings.resident_servers
        if wanted == "auto" and any(adapter_of(each.engine).sizes_by_free_memory for each in specs):
            reason = f"{' and '.join(map(str, specs))} cannot start at the same time"
            self.notify(Note(f"Each server runs alone: {reason}. --llmperf-set resident_servers=share lets them live "
                             "together."))
            return reason
        return self.pool.reason_apart(specs, in_turn=wanted == "sleep")

    def groups(self, specs: Sequence[EngineSpec]) -> tuple[list[tuple[EngineSpec, ...]], str]:
        """Specs whose servers live together, in groups of equal size as far as possible, the last one being smaller.

        The text says why the groups are not larger; "" for one group of all specs.
        """
        reason = ""
        for size in range(len(specs), 1, -1):
            groups = [tuple(specs[first : first + size]) for first in range(0, len(specs), size)]
            reasons = (self.reason_apart(group) for group in groups if len(group) > 1)
            if not (apart := next(filter(None, reasons), "")):
                return groups, reason
            reason = apart
        return [(spec,) for spec in specs], reason

    def planted_in(self, spec: EngineSpec) -> tuple[PlantedFlag, ...]:
        """The flags that are planted into this specification: into the reference build only its own."""
        return tuple(flag for flag in self.planted if flag.reference == (spec.installation == REFERENCE))

    def _plant(self, spec: EngineSpec) -> EngineSpec:
        return with_planted_flags(spec, self.planted_in(spec))

    def executions(self, test: str) -> list[MeasuringTest]:
        """The executions of a test so far. `executions.begin_execution` appends each new execution to this list."""
        return self._executions.setdefault(test, [])

    def resume(self, tests: Collection[TestResult], going_on: Collection[str]) -> None:
        """Go on in a run folder. Server starts are numbered from the last stored one, so no two starts share a number.

        Args:
            tests: all tests of the run folder.
            going_on: ids of the tests that go on from their stored results.
        """
        self.resumed = {test.test: test for test in tests if test.test in going_on}
        self._workers = {test.test: test.worker for test in tests}
        runs = (run for test in tests for measurement in test.measurements for run in measurement.runs)
        self.pool.starts = max((run.start_id for run in runs), default=0)

    def worker_of(self, test: str) -> str:
        """The worker that names the test's file: of a resumed session the worker that wrote the file first."""
        return self._workers.get(test, self.worker)

    def release_records(self) -> None:
        """Keep no request record in memory that is in the run folder, whichever test measured it or read it back."""
        for execution in (execution for executions in self._executions.values() for execution in executions):
            for measurement in execution.measurements:
                measurement.release_records()

    def close(self) -> None:
        """Stop all servers, and what runs on load hosts."""
        try:
            self.pool.close()
        finally:
            if self._ray is not None:
                self._ray.close()
