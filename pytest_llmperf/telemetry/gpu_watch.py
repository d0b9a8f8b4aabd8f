"""What happens on the GPUs during a run, in a thread of its own: the load process has nothing to do with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import mean

from pytest_llmperf.clock import Clock, milliseconds
from pytest_llmperf.model.telemetry import GpuDevice, GpuSample, GpuTrace
from pytest_llmperf.telemetry.foreign_processes import ForeignProcesses
from pytest_llmperf.telemetry.gpu_faults import FaultWatch
from pytest_llmperf.telemetry.gpu_reading import read_sample, read_settings
from pytest_llmperf.telemetry.hardware import Gpu
from pytest_llmperf.telemetry.nvml import GpuNvml, loss_reason

PROCESSES_EVERY = 5  # samples: listing the processes costs more than all the rest
JOIN_S = 5.0


class GpuWatch:
    """Samples GPUs from `start` to `stop`.

    Args:
        nvml: the driver's library.
        gpus: which to watch.
        ours: process ids that belong to us, asked again whenever an unknown one turns up.
        clock: stamps the samples.
        interval_s: between two samples.
        free_bytes: what a process may hold without being a competitor, where it is more than an idle context.
    """

    def __init__(
        self, nvml: GpuNvml, gpus: Sequence[Gpu], ours: Callable[[], Collection[int]], clock: Clock, interval_s: float,
        *, free_bytes: int = 0,
    ) -> None:
        self._nvml = nvml
        self._gpus = tuple(gpus)
        self._clock = clock
        self._interval_s = interval_s
        self._strangers = ForeignProcesses(nvml, ours, free_bytes)
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
        """End sampling; a sentence where the driver hangs, and the thread with it."""
        self._done.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._problem = f"NVML did not answer within {timeout_s:g} s"
            return self._problem
        return None

    def trace(self, origin_ns: int) -> GpuTrace:
        """What was seen, with times after `origin_ns`."""
        devices = tuple(self._devices) or tuple(GpuDevice(gpu.index, gpu.name) for gpu in self._gpus)
        samples = tuple(replace(sample, at_ns=sample.at_ns - origin_ns) for sample in list(self._samples))
        took_ms = mean(self._took_ms) if self._took_ms else None
        strangers = self._strangers
        return GpuTrace(
            devices, samples, strangers.processes(), strangers.pids_visible, self._faults.problems(), self._problem,
            took_ms,
        )

    def _watch(self) -> None:
        """Whatever the driver does, the run goes on: a problem is a sentence in the trace."""
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
            self._strangers.begin(gpu.index, handles[gpu.index])
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
                self._strangers.look(index, handle)
