"""The NVML calls that the telemetry needs, under pynvml's names. A query returns None if the driver lacks support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_llmperf.model.telemetry import GpuSample

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

#: The module pynvml, or a fake of tests (`testing.fake_nvml.FakeNvml`): `query` accepts that any call is missing.
Nvml = Any
#: The module amdsmi, or a fake of tests: names and memory of AMD's GPUs. Nothing is sampled from it.
AmdSmi = Any


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


def pynvml() -> Nvml | None:
    """nvidia-ml-py; None if it is not installed."""
    try:
        import pynvml as module
    except ImportError:
        return None
    return module


def amdsmi() -> AmdSmi | None:
    """AMD SMI's Python package; None if it is not installed or finds no library of the driver."""
    try:
        import amdsmi as module
    except Exception:  # KeyError, OSError and others come out of its search for the library
        return None
    return module


def reasons_in(mask: int) -> list[str]:
    """Names of the clock event reasons in a bit mask.

    >>> reasons_in(0x24)
    ['sw_power_cap', 'sw_thermal_slowdown']
    """
    return [name for bit, name in REASONS.items() if mask & bit]


@dataclass(frozen=True, slots=True)
class Occupant:
    """A process on a GPU, as the driver lists it; see `ForeignProcess` for the fields."""

    pid: int
    memory_bytes: int | None = None
    sm_pct: int | None = None


def read_sample(nvml: Nvml, handle: object, device: int, at_ns: int) -> GpuSample:
    """Everything that goes into the table; seven to nine driver calls.

    Raises:
        GpuLost: the GPU is gone.
    """
    rates = query(nvml, "nvmlDeviceGetUtilizationRates", handle)
    power_mw = query(nvml, "nvmlDeviceGetPowerUsage", handle)
    energy_mj = query(nvml, "nvmlDeviceGetTotalEnergyConsumption", handle)
    used_bytes = memory_in_use(nvml, handle)
    if used_bytes is None:  # an older driver: with what it reserves
        used_bytes = getattr(query(nvml, "nvmlDeviceGetMemoryInfo", handle), "used", None)
    return GpuSample(
        at_ns=at_ns,
        device=device,
        utilization_pct=getattr(rates, "gpu", None),
        memory_used_bytes=used_bytes,
        sm_clock_mhz=query(nvml, "nvmlDeviceGetClockInfo", handle, SM),
        memory_clock_mhz=query(nvml, "nvmlDeviceGetClockInfo", handle, MEMORY),
        power_w=None if power_mw is None else power_mw / 1000,
        energy_j=None if energy_mj is None else energy_mj / 1000,
        temperature_c=query(nvml, "nvmlDeviceGetTemperature", handle, CORE),
        throttle_reasons=query(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle),
    )


def memory_in_use(nvml: Nvml, handle: object) -> int | None:
    """Bytes that processes hold, without the driver's own reserve; None if the driver reports only the sum."""
    used = getattr(query(nvml, "nvmlDeviceGetMemoryInfo", handle, MEMORY_V2), "used", None)
    return None if used is None else int(used)


def uncorrected_errors(nvml: Nvml, handle: object) -> int | None:
    """Uncorrected memory errors since the driver was loaded; None without ECC."""
    count = query(nvml, "nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE)
    return None if count is None else int(count)


def occupants(nvml: Nvml, handle: object) -> list[Occupant]:
    """The processes that hold a context on this GPU."""
    calls = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
    listed = [entry for call in calls for entry in query(nvml, call, handle) or ()]
    return [Occupant(int(entry.pid), entry.usedGpuMemory) for entry in listed]


def busy_since(nvml: Nvml, handle: object, since_us: int) -> tuple[list[Occupant], int]:
    """Processes that used the SMs after `since_us` (0: as far back as the driver remembers), and the latest stamp.

    The stamps are the driver's own, microseconds.
    """
    samples = query(nvml, "nvmlDeviceGetProcessUtilization", handle, since_us) or ()
    fresh = [sample for sample in samples if sample.timeStamp > since_us]
    latest_us = max((int(sample.timeStamp) for sample in fresh), default=since_us)
    return [Occupant(int(sample.pid), sm_pct=int(sample.smUtil)) for sample in fresh if sample.smUtil], latest_us


def read_settings(nvml: Nvml, handle: object) -> tuple[tuple[str, str], ...]:
    """Settings of a GPU that a comparison depends on, as far as the driver reports them: name → value as text.

    A clock that `nvidia-smi --lock-gpu-clocks` locked has no getter; it shows in the sampled clocks alone.
    """
    fields: dict[str, object] = {
        "persistence": _switch(query(nvml, "nvmlDeviceGetPersistenceMode", handle)),
        "ecc": _switch(_current(query(nvml, "nvmlDeviceGetEccMode", handle))),
        "mig": _switch(_current(query(nvml, "nvmlDeviceGetMigMode", handle))),
        "power_limit_mw": query(nvml, "nvmlDeviceGetPowerManagementLimit", handle),
        "application_sm_clock_mhz": query(nvml, "nvmlDeviceGetApplicationsClock", handle, SM),
        "application_memory_clock_mhz": query(nvml, "nvmlDeviceGetApplicationsClock", handle, MEMORY),
    }
    return tuple((name, str(value)) for name, value in fields.items() if value is not None)


def _current(modes: object) -> int | None:
    """The current mode of a pair (current, pending)."""
    return int(modes[0]) if isinstance(modes, list | tuple) and modes else None


def _switch(mode: int | None) -> str | None:
    return None if mode is None else ("on" if mode else "off")
