"""What happens on the GPUs during a run. A thread of the pytest process watches them, not the load processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from pytest_llmperf.clock import Clock, milliseconds
from pytest_llmperf.model.telemetry import ForeignProcess, GpuDevice, GpuSample, GpuTrace
from pytest_llmperf.process.tree import read_stat
from pytest_llmperf.telemetry.hardware import Gpu
from pytest_llmperf.telemetry.nvml import (
    XID,
    Nvml,
    Occupant,
    busy_since,
    loss_reason,
    occupants,
    query,
    read_sample,
    read_settings,
    uncorrected_errors,
)

MOST_XIDS = 20  # a broken GPU repeats itself


class FaultWatch:
    """Finds the GPU faults of a run from events and ECC counters. A driver without them shows no faults.

    Args:
        nvml: the driver's library.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._earlier_errors: dict[int, int | None] = {}
        self._events: Any = None
        self._problems: list[str] = []

    def begin(self, index: int, handle: object) -> None:
        """Note the counters of one GPU, and listen to it."""
        self._earlier_errors[index] = uncorrected_errors(self._nvml, handle)
        if self._events is None:
            self._events = query(self._nvml, "nvmlEventSetCreate")
        if self._events is not None:
            query(self._nvml, "nvmlDeviceRegisterEvents", handle, XID, self._events)

    def end(self, handles: Mapping[int, object]) -> None:
        """Ask what has happened since `begin`."""
        for _ in range(MOST_XIDS):
            event = None if self._events is None else query(self._nvml, "nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                break
            self._problems.append(
                f"a GPU reported Xid {event.eventData} (NVIDIA's list of Xid errors says what it means)"
            )
        if self._events is not None:
            query(self._nvml, "nvmlEventSetFree", self._events)
        for index, handle in handles.items():
            before, after = self._earlier_errors.get(index), uncorrected_errors(self._nvml, handle)
            if before is not None and after is not None and after > before:
                self._problems.append(f"GPU {index} had {after - before} uncorrected memory errors (ECC)")

    def lost(self, why: str) -> None:
        """Note that a GPU is lost. The watch then ends, because NVML gives the same answer to every later query."""
        self._problems.append(f"a GPU {why}")

    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems)


# A CUDA context without work, such as that of a display, holds less memory and uses no SM, so it does not compete.
IDLE_BYTES = 256 * 2**20


class ForeignProcesses:
    """Finds processes of other programs on watched GPUs.

    In a container the driver may report process ids of the host. If the process id of our server, which holds GPU
    memory, is not among them, the ids are of the host, and no process is called foreign.

    Args:
        nvml: the driver's library.
        ours: gives the process ids of this session and its servers now.
        free_bytes: a process that holds at most this much memory did not hinder the start of our server.
    """

    def __init__(self, nvml: Nvml, ours: Callable[[], Collection[int]], free_bytes: int) -> None:
        self._nvml = nvml
        self._ask_ours = ours
        self._idle_bytes = max(IDLE_BYTES, free_bytes)
        self._ours: set[int] = set()
        self._seen: dict[tuple[int, int], ForeignProcess] = {}
        self._own_seen = False
        self._since_us: dict[int, int] = {}

    @property
    def pids_visible(self) -> bool | None:
        """See `GpuTrace`."""
        if self._own_seen:
            return True
        return False if self._seen else None

    def begin(self, index: int, handle: object) -> None:
        """Ignore the use of the GPU before the run."""
        self._since_us[index] = busy_since(self._nvml, handle, 0)[1]

    def look(self, index: int, handle: object) -> None:
        """Note the processes on one GPU, and those that used the GPU since the last call."""
        busy, self._since_us[index] = busy_since(self._nvml, handle, self._since_us.get(index, 0))
        for occupant in [*occupants(self._nvml, handle), *busy]:
            if occupant.pid not in self._ours:
                self._ours |= {os.getpid(), *self._ask_ours()}
            if occupant.pid in self._ours:
                self._own_seen = True
            else:
                self._note(index, occupant)

    def processes(self) -> tuple[ForeignProcess, ...]:
        """Foreign processes that used SMs or held more than idle memory; none if the process ids are of the host."""
        if not self._own_seen:
            return ()
        return tuple(process for process in self._seen.values()
                     if process.sm_pct or (process.memory_bytes or 0) > self._idle_bytes)

    def _note(self, index: int, occupant: Occupant) -> None:
        pid = occupant.pid
        known = self._seen.get((index, pid)) or ForeignProcess(index, pid, name=name_of(pid), user=user_of(pid))
        self._seen[index, pid] = replace(
            known, memory_bytes=_larger_of(known.memory_bytes, occupant.memory_bytes),
            sm_pct=_larger_of(known.sm_pct, occupant.sm_pct),
        )


def name_of(pid: int) -> str | None:
    """Name of process `pid`; None if the process does not run on this machine."""
    stat = read_stat(pid)
    return None if stat is None else stat.name


def user_of(pid: int) -> str | None:
    """Name of the user who runs process `pid`, or the user id if it has no name; None if the process has ended."""
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
    try:
        import pwd  # not on Windows, where the emulator runs

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)


def _larger_of(first: int | None, second: int | None) -> int | None:
    return max((value for value in (first, second) if value is not None), default=None)


PROCESSES_EVERY = 5  # samples: listing the processes costs more than all the rest
JOIN_S = 5.0


class GpuWatch:
    """Samples GPUs from `start` to `stop`.

    Args:
        nvml: the driver's library.
        gpus: which to watch.
        ours: gives the process ids of this session and its servers. It is called when an unknown process appears.
        clock: stamps the samples.
        interval_s: time between two samples.
        free_bytes: memory that a process may hold without competing, if larger than an idle context.
    """

    def __init__(
        self, nvml: Nvml, gpus: Sequence[Gpu], ours: Callable[[], Collection[int]], clock: Clock, interval_s: float,
        *, free_bytes: int = 0,
    ) -> None:
        self._nvml = nvml
        self._gpus = tuple(gpus)
        self._clock = clock
        self._interval_s = interval_s
        self._foreign = ForeignProcesses(nvml, ours, free_bytes)
        self._faults = FaultWatch(nvml)
        self._samples: list[GpuSample] = []
        self._took_ms: list[float] = []
        self._devices: list[GpuDevice] = []
        self._problem: str | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="llmperf-gpus")

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = JOIN_S) -> str | None:
        """End sampling. Returns a sentence if the driver hangs, and with it the thread; else None."""
        self._done.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._problem = f"NVML did not answer within {timeout_s:g} s"
            return self._problem
        return None

    def trace(self, origin_ns: int) -> GpuTrace:
        """The samples and findings, with times in nanoseconds after `origin_ns`."""
        devices = tuple(self._devices) or tuple(GpuDevice(gpu.index, gpu.name) for gpu in self._gpus)
        samples = tuple(replace(sample, at_ns=sample.at_ns - origin_ns) for sample in list(self._samples))
        took_ms = mean(self._took_ms) if self._took_ms else None
        foreign = self._foreign
        return GpuTrace(
            devices, samples, foreign.processes(), foreign.pids_visible, self._faults.problems(), self._problem,
            took_ms,
        )

    def _watch(self) -> None:
        """Sample until `stop`. An error of the driver becomes a sentence in the trace and never fails the run."""
        try:
            self._nvml.nvmlInit()
        except Exception as error:
            self._problem = f"NVML: {error}"
            return
        try:
            self._sample_until_done()
        except Exception as error:
            why = loss_reason(error)
            if why is None:
                self._problem = f"NVML: {error}"
            else:
                self._faults.lost(why)
        finally:
            with suppress(Exception):
                self._nvml.nvmlShutdown()

    def _sample_until_done(self) -> None:
        handles = {gpu.index: self._nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in self._gpus}
        for gpu in self._gpus:
            self._devices.append(GpuDevice(gpu.index, gpu.name, read_settings(self._nvml, handles[gpu.index])))
            self._faults.begin(gpu.index, handles[gpu.index])
            self._foreign.begin(gpu.index, handles[gpu.index])
        taken, going_on = 0, True
        while going_on:
            going_on = not self._done.wait(self._interval_s if taken else 0)
            began_ns = self._clock.now_ns()
            self._sample(handles, with_processes=taken % PROCESSES_EVERY == 0 or not going_on)
            self._took_ms.append(milliseconds(self._clock.now_ns() - began_ns))
            taken += 1
        self._faults.end(handles)

    def _sample(self, handles: dict[int, object], *, with_processes: bool) -> None:
        for index, handle in handles.items():
            sample = read_sample(self._nvml, handle, index, self._clock.now_ns())
            if sample == GpuSample(sample.at_ns, index):
                raise OSError(f"the driver no longer reports GPU {index}")
            self._samples.append(sample)
            if with_processes:
                self._foreign.look(index, handle)
