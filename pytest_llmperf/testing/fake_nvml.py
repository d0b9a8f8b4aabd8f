"""NVML without a driver: GPUs as plain objects that a test changes, also while they are watched.

To be found by a whole pytest run, put a module `pynvml.py` on its path that holds

    from pytest_llmperf.testing.fake_nvml import FakeGpu, FakeNvml
    fake = FakeNvml([FakeGpu()])
    __getattr__ = lambda name: getattr(fake, name)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from pytest_llmperf.clock import Clock, SystemClock

NOT_SUPPORTED, NOT_FOUND, TIMEOUT, GPU_IS_LOST = 3, 6, 10, 15


class FakeNvmlError(Exception):
    """As pynvml.NVMLError: `value` is NVML's return code."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass(slots=True)
class FakeGpu:
    """One GPU; change any field at any time.

    Args:
        used_bytes: memory of all processes together.
        processes: process id → bytes of the process; None if the driver does not report memory per process.
        sm_pct: process id → SM utilization of the process, in percent.
        reasons: clock event reasons, a bit mask.
        power_mw: power draw of each reading.
        counted_mw: power that the energy counter adds up; None for a GPU without the counter.
        ecc_errors: number of uncorrected ECC errors so far; None for a GPU without ECC.
        lost: whether each query for this GPU fails.
    """

    name: str = "NVIDIA H200"
    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    total_bytes: int = 141 << 30
    used_bytes: int = 0
    processes: dict[int, int | None] = field(default_factory=dict)
    sm_pct: dict[int, int] = field(default_factory=dict)
    utilization_pct: int = 0
    sm_clock_mhz: int = 1980
    memory_clock_mhz: int = 3201
    application_clocks_mhz: tuple[int, int] = (1980, 3201)
    power_mw: int = 120_000
    counted_mw: int | None = None
    power_limit_mw: int = 700_000
    temperature_c: int = 40
    reasons: int = 0
    ecc_errors: int | None = 0
    persistence: bool = True
    mig: bool = False
    lost: bool = False


#: What each call about one GPU answers, from the GPU and the arguments after its handle.
ANSWERS: dict[str, Callable[..., object]] = {
    "nvmlDeviceGetName": lambda gpu: gpu.name,
    "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
    "nvmlDeviceGetPersistenceMode": lambda gpu: int(gpu.persistence),
    "nvmlDeviceGetEccMode": lambda gpu: [int(gpu.ecc_errors is not None)] * 2,
    "nvmlDeviceGetMigMode": lambda gpu: [int(gpu.mig)] * 2,
    "nvmlDeviceGetPowerManagementLimit": lambda gpu: gpu.power_limit_mw,
    "nvmlDeviceGetApplicationsClock": lambda gpu, clock: gpu.application_clocks_mhz[clock - 1],
    "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=gpu.utilization_pct, memory=0),
    "nvmlDeviceGetClockInfo": lambda gpu, clock: (gpu.sm_clock_mhz, gpu.memory_clock_mhz)[clock - 1],
    "nvmlDeviceGetPowerUsage": lambda gpu: gpu.power_mw,
    "nvmlDeviceGetTemperature": lambda gpu, _sensor: gpu.temperature_c,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.reasons,
    "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [
        SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes.items()
    ],
    "nvmlDeviceGetGraphicsRunningProcesses": lambda _gpu: [],
    "nvmlDeviceGetTotalEccErrors": lambda gpu, *_kinds: gpu.ecc_errors,
    "nvmlDeviceRegisterEvents": lambda _gpu, *_events: None,
}


class FakeNvml:
    """Has the calls of pynvml that the telemetry uses.

    Args:
        gpus: by index.
        unsupported: names of calls that fail as a driver that does not support them does.
        broken: names of calls that fail otherwise.
        clock: by which energy counters grow.

    Attributes:
        xids: Xids that are still to be reported.
        answering: while it is cleared, every call waits: the driver hangs.
        calls: how often each call was made.
    """

    def __init__(
        self, gpus: Sequence[FakeGpu] = (), unsupported: Sequence[str] = (), broken: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.gpus = list(gpus)
        self.unsupported = set(unsupported)
        self.broken = set(broken)
        self.xids: list[int] = []
        self.answering = threading.Event()
        self.answering.set()
        self.calls: dict[str, int] = {}
        self._now_us = 0

    def __getattr__(self, call: str) -> Callable[..., object]:
        if call not in ANSWERS:
            raise AttributeError(call)
        return lambda handle, *arguments: ANSWERS[call](self._gpu(call, handle), *arguments)

    def nvmlInit(self) -> None:
        self._begin("nvmlInit")

    def nvmlShutdown(self) -> None:
        self._begin("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        self._begin("nvmlSystemGetCudaDriverVersion")
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:
        self._gpu("nvmlDeviceGetHandleByIndex", index)
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: object, version: int | None = None) -> Any:
        gpu = self._gpu("nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo", handle)
        return SimpleNamespace(total=gpu.total_bytes, used=gpu.used_bytes, free=gpu.total_bytes - gpu.used_bytes)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:
        counted_mw = self._gpu("nvmlDeviceGetTotalEnergyConsumption", handle).counted_mw
        if counted_mw is None:
            raise FakeNvmlError(NOT_SUPPORTED)
        return counted_mw * self.clock.now_ns() // 10**9

    def nvmlDeviceGetProcessUtilization(self, handle: object, timeStamp: int) -> Sequence[Any]:  # noqa: ARG002
        gpu = self._gpu("nvmlDeviceGetProcessUtilization", handle)
        if not gpu.sm_pct:
            raise FakeNvmlError(NOT_FOUND)
        self._now_us += 1
        return [SimpleNamespace(pid=pid, smUtil=used, timeStamp=self._now_us) for pid, used in gpu.sm_pct.items()]

    def nvmlEventSetCreate(self) -> object:
        self._begin("nvmlEventSetCreate")
        return "events"

    def nvmlEventSetFree(self, eventSet: object) -> None:  # noqa: ARG002
        self._begin("nvmlEventSetFree")

    def nvmlEventSetWait_v2(self, eventSet: object, timeoutms: int) -> Any:  # noqa: ARG002
        self._begin("nvmlEventSetWait_v2")
        if not self.xids:
            raise FakeNvmlError(TIMEOUT)
        return SimpleNamespace(eventData=self.xids.pop(0))

    def _begin(self, call: str) -> None:
        self.calls[call] = self.calls.get(call, 0) + 1
        self.answering.wait()
        if call in self.broken:
            raise RuntimeError(f"{call} failed")
        if call in self.unsupported:
            raise FakeNvmlError(NOT_SUPPORTED)

    def _gpu(self, call: str, handle: object) -> FakeGpu:
        self._begin(call)
        gpu = self.gpus[handle] if isinstance(handle, int) else None
        if gpu is None or gpu.lost:
            raise FakeNvmlError(GPU_IS_LOST)
        return gpu
