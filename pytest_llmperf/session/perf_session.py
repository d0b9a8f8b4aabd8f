"""The state that all tests of one process share."""

from __future__ import annotations

import os
import random
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.clock import Clock, SystemClock, VirtualClock
from pytest_llmperf.config.emulation import Emulation
from pytest_llmperf.config.settings import Settings, with_price_of_kind
from pytest_llmperf.engines.adapters import adapter_of, check_configured
from pytest_llmperf.engines.memory.measured import MemoryRecords
from pytest_llmperf.engines.memory.shares import Shares, memory_shares, sleeping_specs, with_sleep_flags
from pytest_llmperf.engines.process.emulated import VirtualLauncher
from pytest_llmperf.engines.process.launch import Launcher
from pytest_llmperf.engines.process.planted_flags import PlantedFlag, with_planted_flags
from pytest_llmperf.engines.process.pool import EnginePool, lock_of_this_machine
from pytest_llmperf.engines.server import Server
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.engines.vllm.refusal_prediction import predicted_refusal
from pytest_llmperf.errors import InfrastructureError
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.load.cores import Cores, cores_for
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.load.transport import Transport
from pytest_llmperf.load.virtual import VirtualEngine, VirtualTransport
from pytest_llmperf.metrics.energy import GPU_HOUR_PRICE, GPUS
from pytest_llmperf.model.engine import REFERENCE, Endpoint, EngineSpec
from pytest_llmperf.model.ranks import gpus_of
from pytest_llmperf.model.status import Note, Notify, Starting
from pytest_llmperf.process.ports import lock_folder, private_folder, scratch_folder
from pytest_llmperf.process.scratch import sweep, temporaries
from pytest_llmperf.results.conditions import field_rules
from pytest_llmperf.results.measurement import Measurement, TestResult
from pytest_llmperf.results.profile import FOLDER as PROFILES
from pytest_llmperf.results.profile import UNFINISHED
from pytest_llmperf.results.writer import writable
from pytest_llmperf.session.ledger import Ledger
from pytest_llmperf.session.provenance import FILE as PROVENANCE
from pytest_llmperf.session.provenance import add_canary, host_digest, lacks_canary, provenance, write_provenance
from pytest_llmperf.session.provenance import session_id as new_session_id
from pytest_llmperf.session.replay import GAUGE_INTERVAL_S, Replayer, Watch, stream_limits
from pytest_llmperf.session.stored_baselines import Baselines
from pytest_llmperf.telemetry.accelerators import Accelerators, TraceOf
from pytest_llmperf.telemetry.canary import canary
from pytest_llmperf.telemetry.cpu import free_host_memory_bytes, use_from_now
from pytest_llmperf.telemetry.hardware import Gpu, Hardware

if TYPE_CHECKING:
    from pytest_llmperf.load.ray_hosts import RayLoad


#: Age at which the speed of a server no longer depends on its age. vLLM 0.26.0 on an H200: each run within 103 s of the
#: start of the process was 2 to 4 % slower than each run after 144 s (docs/measured/h200_servers.md).
STEADY_AGE_S = 150.0


class MeasuringTest(Protocol):
    """An execution of a test, as far as a session needs it."""

    @property
    def measurements(self) -> list[Measurement]:
        """Measurements so far."""
        ...


def _ray_load(settings: Settings) -> RayLoad | None:
    """What runs load processes on other hosts; None where they run on this machine."""
    if not settings.load_hosts:
        return None
    from pytest_llmperf.load.ray_hosts import RayLoad

    return RayLoad(settings.load_hosts, settings.load_processes, settings.load_cpus)


def _emulated_shares(specs: Sequence[EngineSpec], *, in_turn: bool) -> Shares | str:
    """As on the emulated GPU, whose host has memory for every sleeping server. Emulated servers divide nothing."""
    if len({gpus_of(flags_of(spec)) for spec in specs}) > 1:
        return "they take different GPUs"
    kind = specs[0].kind
    memory_bytes = None if kind is None or kind not in GPU_KINDS else GPU_KINDS[kind].nvml_memory_bytes
    shares = sleeping_specs(specs, memory_bytes, sys.maxsize) if in_turn else memory_shares(specs, memory_bytes)
    if isinstance(shares, str):
        return shares
    return Shares(tuple(map(with_sleep_flags, specs) if in_turn else specs), shares.text)


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
        self._executions: dict[str, list[MeasuringTest]] = {}
        self._on_begin = on_begin  # called with the run folder before the first measurement
        self._begun = False
        self._canary_seen = False
        self.id = session_id or new_session_id(now(), self.rng)
        self.worker = re.sub(r"[^A-Za-z0-9_-]+", "-", worker)  # of xdist; all of them write into one folder
        self.run_dir = self._place() / self.id
        self._sweep()  # before a server starts or a file is written: the disk may be full of leftovers
        store = Store(root / settings.baselines_dir)
        self.host = host_digest(hardware, virtual=virtual is not None)
        self.baselines = Baselines(store, self.host, field_rules(settings))
        self.accelerators = Accelerators(
            hardware, self.clock, notify, settings.gpu_interval_s, round(settings.gpu_free_limit_mib * 2**20),
            settings.gpu_free_timeout_s,
        )
        if virtual is not None:
            self.pool = self._in_virtual_time(root, virtual, steady_age_s)
        else:
            launcher = Launcher(settings, root, self.run_dir, hardware.kind, self.clock, self.rng, notify, emulation,
                                cpus=cores.servers if cores.reserved else (), worker=self.worker)
            self._memories = MemoryRecords(self.run_dir.parent, launcher.version)
            # An emulator in real time takes nothing of this machine's accelerators.
            lock = None if emulation else lock_of_this_machine()
            self.pool = EnginePool(launcher, lock, wait_free=self._wait_free, plant=self._plant,
                                   share_memory=self._share_memory, on_start=self._measure_memory, session=self.id,
                                   steady_age_s=0.0 if emulation else steady_age_s)

    def _cores(self, worker: str) -> Cores:
        """CPUs for the load and for servers; workers that measure at the same time take different ones."""
        position = int(worker.removeprefix("gw")) if worker.removeprefix("gw").isdigit() else 0
        return cores_for(self.settings.load_cpus, self.settings.load_processes, position)

    def _in_virtual_time(self, root: Path, emulation: Emulation, steady_age_s: float) -> EnginePool:
        """The emulator behind the same seams: clock, transport and launcher."""
        clock, engines, begun = VirtualClock(), dict[str, VirtualEngine](), self.now()
        self.clock = clock
        self.transport = VirtualTransport(engines)
        self.now = lambda: begun + timedelta(microseconds=clock.now_ns() // 1000)
        launcher = VirtualLauncher(emulation, self.settings, root, self.run_dir, clock, self.rng, self.notify, engines,
                                   self.worker)
        return EnginePool(launcher, lock_path=None, plant=self._plant, share_memory=self._share_memory,
                          steady_age_s=steady_age_s)

    def replayer(self, progress: Watch | None, *, gauges: bool, keep: tuple[str, ...]) -> Replayer:
        """What sends a workload: see `Replayer`."""
        return Replayer(
            self.transport,
            self.now,
            GAUGE_INTERVAL_S if gauges else None,
            progress,
            clock=self.clock,
            limits=stream_limits(self.settings),
            timeout_s=self.settings.measure_timeout_s,
            keep=keep,
            watched=self.watched,
            fresh_connections=self.settings.connections == "fresh",
            cpu_use=self.cpu_use,
            rng=self.rng,
            ledger=self.ledger,
            gpu_costs=lambda server: self.gpu_costs(server.spec),
        )

    def gpu_costs(self, spec: EngineSpec) -> dict[str, float]:
        """The number of GPUs of a server and the price of a GPU hour, as counters of a run; of an endpoint neither."""
        if isinstance(spec, Endpoint):
            return {}
        gpus = gpus_of(flags_of(spec)) if self.hardware.emulated else len(self._gpus(spec))
        if not gpus:
            return {}
        price = self.settings.gpu_price
        return {GPUS: gpus} if price is None else {GPUS: gpus, GPU_HOUR_PRICE: price.amount}

    def watched(self, server: Server) -> AbstractContextManager[TraceOf]:
        """Look at the GPUs of a server while a block runs; at none for an endpoint, whose machine is not known."""
        gpus = () if isinstance(server.spec, Endpoint) else self._gpus(server.spec)
        return self.accelerators.watched(gpus, self.pool.pids)

    def reference_of(self, spec: EngineSpec) -> EngineSpec | None:
        """The same specification on the reference build; None where no reference build was named for this engine."""
        if spec.engine not in self.references or spec.installation:
            return None
        return spec.with_installation(REFERENCE)

    def beside(self, spec: EngineSpec) -> tuple[EngineSpec, ...]:
        """What is measured in turn with this specification: its reference."""
        reference = self.reference_of(spec)
        return () if reference is None else (reference,)

    def reason_apart(self, specs: Sequence[EngineSpec]) -> str:
        """Why each of these specs runs alone in a test that names them together; "" if their servers live together.

        The servers share the memory. Servers that start one after the other save no time and differ in age. So servers
        that sleep in turn, or of an engine that sizes its memory by what is free, need the setting `resident_servers`.
        """
        if any(isinstance(each, Endpoint) for each in specs):
            return "a server that already runs is measured as it is"
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
        """The flags that are planted into this specification: none into the reference build."""
        return () if spec.installation == REFERENCE else self.planted

    def _plant(self, spec: EngineSpec) -> EngineSpec:
        return with_planted_flags(spec, self.planted_in(spec))

    def _share_memory(self, specs: Sequence[EngineSpec], in_turn: bool) -> Shares | str:
        """A server on a CPU takes little memory; on a GPU each gets a share of it, or a turn."""
        wanted = self.settings.resident_servers
        if wanted not in ("auto", "sleep" if in_turn else "share"):
            return f'resident_servers is "{wanted}"'
        if self.hardware.emulated:
            return _emulated_shares(specs, in_turn=in_turn)
        taken = [self._gpus(spec) for spec in specs]
        if not any(taken):
            return "a CPU has no memory of its own to release" if in_turn else Shares(tuple(specs))
        if any(gpus != taken[0] for gpus in taken):
            return "they take different GPUs"
        sizes = [gpu.memory_bytes for gpu in taken[0] if gpu.memory_bytes is not None]
        memory_bytes = min(sizes) if len(sizes) == len(taken[0]) else None
        measured = self._memories.of(specs, taken[0][0].name)
        if in_turn:
            return sleeping_specs(specs, memory_bytes, free_host_memory_bytes(), measured)
        return memory_shares(specs, memory_bytes, measured)

    def _measure_memory(self, spec: EngineSpec, server: Server) -> None:
        """Keep what a server holds on its GPUs right after its start, for the plans of later sessions."""
        if gpus := self._gpus(server.spec):
            held_bytes = self.accelerators.held_bytes(gpus, server.unit.pids(), alone=not server.siblings)
            self._memories.add(spec, gpus[0].name, server, held_bytes)

    def _wait_free(self, spec: EngineSpec, stay: int) -> None:
        gpus = self._gpus(spec)
        self.accelerators.wait_free(gpus, stay)
        if gpus and not self._canary_seen:
            self._canary_seen = True
            self._record_canary(gpus[0])

    def _record_canary(self, gpu: Gpu) -> None:
        """Once per host of a run folder, while the GPU is free: the machine's lock keeps other workers out."""
        self.begin()
        with suppress(OSError, ValueError):  # data beside the results, which stand without it
            if lacks_canary(self.run_dir, self.host):
                self.notify(Starting("the canary of this host"))
                add_canary(self.run_dir, self.host, {"gpu": gpu.name, **canary()})

    def predicted_refusal(self, spec: EngineSpec) -> str | None:
        """Why this engine should refuse its longest sequence, by arithmetic; None if nothing speaks against a start."""
        sizes = [gpu.memory_bytes for gpu in self._gpus(spec)]
        if self.hardware.emulated:
            sizes = [GPU_KINDS[spec.kind].nvml_memory_bytes] if spec.kind and spec.kind in GPU_KINDS else []
        readable = [size for size in sizes if size is not None]
        return predicted_refusal(spec, min(readable) if readable and len(readable) == len(sizes) else None)

    def hardware_of(self, spec: EngineSpec) -> Hardware:
        """The hardware that a server uses: a server on one of eight GPUs has one GPU."""
        taken = self._gpus(spec)
        return replace(self.hardware, gpus=taken) if taken else self.hardware

    def _gpus(self, spec: EngineSpec) -> tuple[Gpu, ...]:
        return self.accelerators.of_server(flags_of(spec), dict(spec.env), spec.kind)

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
        runs = (run for test in tests for measurement in test.measurements for run in measurement.runs)
        self.pool.starts = max((run.start_id for run in runs), default=0)

    def release_records(self) -> None:
        """Keep no request record in memory that is in the run folder, whichever test measured it or read it back."""
        for execution in (execution for executions in self._executions.values() for execution in executions):
            for measurement in execution.measurements:
                measurement.release_records()

    def _place(self) -> Path:
        """The folder for run folders. If the project's folder is not writable, a private temporary folder is created.

        Raises:
            InfrastructureError: the path of the private folder belongs to another user.
        """
        folder = self.root / self.settings.runs_dir
        if writable(folder):
            return folder
        instead = private_folder(Path(tempfile.gettempdir()) / f"llmperf-runs-{self.id}")
        where = f"results go to {instead}. Name another folder with --llmperf-runs=DIR."
        self.notify(Note(f"{folder} cannot be written: {where}"))
        return instead

    def begin(self) -> None:
        """Write the provenance to the run folder, before the first result.

        Raises:
            InfrastructureError: the run folder cannot be written.
        """
        if self._begun:
            return
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self._hide_from_git()
            if not (self.run_dir / PROVENANCE).exists():  # another worker of this session may have written it
                origin = provenance(self.root, self.id, self.now(), [self.settings.baselines_dir], self.host)
                write_provenance(self.run_dir, origin)
        except OSError as error:
            raise InfrastructureError(f"The run folder cannot be written: {error}. Free space there, or choose a "
                                      "different folder with --llmperf-runs=DIR.") from error
        self._begun = True
        self._on_begin(self.run_dir)

    def _sweep(self) -> None:
        """Remove what killed runs of this user have left: recordings, workers' lines, locks, half-written files."""
        if os.name != "posix":
            return
        runs = list(self.run_dir.parent.iterdir()) if self.run_dir.parent.is_dir() else []
        sweep(path for run in runs for path in (run / PROFILES).glob(f"{UNFINISHED}*"))
        sweep(temporaries(place for run in runs for place in (run, run / "tests", run / "requests")))
        with suppress(InfrastructureError):  # somebody else's folder: nothing in it is ours
            sweep(path for folder in (lock_folder(), lock_of_this_machine().parent) for path in folder.glob("*.lock"))
            sweep(scratch_folder().iterdir())

    def _hide_from_git(self) -> None:
        """What we write is nothing to commit; a folder that the user named is the user's."""
        ours = self.root / Settings().runs_dir
        ignore = ours.parent / ".gitignore"
        if self.run_dir.parent == ours and not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")

    def close(self) -> None:
        """Stop all servers, and what runs on load hosts."""
        try:
            self.pool.close()
        finally:
            if self._ray is not None:
                self._ray.close()
