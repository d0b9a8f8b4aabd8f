"""The NVML calls that the telemetry needs, under pynvml's names. A query returns None if the driver lacks support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

# NVML's constants (nvml.h), spelled out so that nothing here needs pynvml.
SM, MEMORY = 1, 2                        # nvmlClockType_t
CORE = 0                                 # nvmlTemperatureSensors_t
UNCORRECTED, VOLATILE = 1, 0             # nvmlMemoryErrorType_t, nvmlEccCounterType_t
XID = 8                                  # nvmlEventTypeXidCriticalError
MEMORY_V2 = 0x02000028                   # nvmlMemory_v2: separates used from reserved
LOST = {15: "fell off the bus", 16: "needs a reset"}  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED

REASONS = {
    0x1: "gpu_idle", 0x2: "applications_clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


class Nvml(Protocol):
    """The NVML calls that list the GPUs. Tests pass a fake."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...
    def nvmlDeviceGetName(self, handle: object) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: object, version: int | None = None) -> Any: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlSystemGetCudaDriverVersion(self) -> int: ...


class GpuNvml(Nvml, Protocol):
    """The NVML calls for a single GPU. Tests pass a `testing.fake_nvml.FakeNvml`."""

    def nvmlDeviceGetUUID(self, handle: object) -> str: ...
    def nvmlDeviceGetPersistenceMode(self, handle: object) -> int: ...
    def nvmlDeviceGetEccMode(self, handle: object) -> Sequence[int]: ...
    def nvmlDeviceGetMigMode(self, device: object) -> Sequence[int]: ...
    def nvmlDeviceGetPowerManagementLimit(self, handle: object) -> int: ...
    def nvmlDeviceGetApplicationsClock(self, handle: object, type: int) -> int: ...
    def nvmlDeviceGetUtilizationRates(self, handle: object) -> Any: ...
    def nvmlDeviceGetClockInfo(self, handle: object, type: int) -> int: ...
    def nvmlDeviceGetPowerUsage(self, handle: object) -> int: ...
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int: ...
    def nvmlDeviceGetTemperature(self, handle: object, sensor: int) -> int: ...
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: object) -> int: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> Sequence[Any]: ...
    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: object) -> Sequence[Any]: ...
    def nvmlDeviceGetProcessUtilization(self, handle: object, timeStamp: int) -> Sequence[Any]: ...
    def nvmlDeviceGetTotalEccErrors(self, handle: object, errorType: int, counterType: int) -> int: ...
    def nvmlEventSetCreate(self) -> object: ...
    def nvmlDeviceRegisterEvents(self, handle: object, eventTypes: int, eventSet: object) -> None: ...
    def nvmlEventSetWait_v2(self, eventSet: object, timeoutms: int) -> Any: ...
    def nvmlEventSetFree(self, eventSet: object) -> None: ...


class GpuLost(Exception):
    """The driver says that this GPU is gone."""


def query(nvml: Nvml, call: str, *arguments: object) -> Any:
    """The driver's answer. None if the driver or an old pynvml lacks the call, since each call is missing on some host.

    Raises:
        GpuLost: the GPU is lost.
    """
    try:
        return getattr(nvml, call)(*arguments)
    except Exception as error:
        why = loss_reason(error)
        if why is not None:
            raise GpuLost(why) from error
        return None


def loss_reason(error: Exception) -> str | None:
    """Description of the loss if a driver error means that the GPU is lost; None for any other error."""
    return str(error) if isinstance(error, GpuLost) else LOST.get(getattr(error, "value", 0))


def pynvml() -> GpuNvml | None:
    """nvidia-ml-py; None where it is not installed."""
    try:
        import pynvml as module
    except ImportError:
        return None
    return cast("GpuNvml", module)


def reasons_in(mask: int) -> list[str]:
    """Names of the clock event reasons in a bit mask.

    >>> reasons_in(0x24)
    ['sw_power_cap', 'sw_thermal_slowdown']
    """
    return [name for bit, name in REASONS.items() if mask & bit]
