"""One GPU, read once."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmperf.model.telemetry import GpuSample
from pytest_llmperf.telemetry.nvml import CORE, MEMORY, MEMORY_V2, SM, UNCORRECTED, VOLATILE, GpuNvml, Nvml, query


@dataclass(frozen=True, slots=True)
class Occupant:
    """A process on a GPU, as the driver lists it; see `ForeignProcess` for the fields."""

    pid: int
    memory_bytes: int | None = None
    sm_pct: int | None = None


def read_sample(nvml: GpuNvml, handle: object, device: int, at_ns: int) -> GpuSample:
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


def memory_in_use(nvml: GpuNvml, handle: object) -> int | None:
    """Bytes that processes hold, without the driver's own reserve; None if the driver reports only the sum."""
    used = getattr(query(nvml, "nvmlDeviceGetMemoryInfo", handle, MEMORY_V2), "used", None)
    return None if used is None else int(used)


def uncorrected_errors(nvml: GpuNvml, handle: object) -> int | None:
    """Uncorrected memory errors since the driver was loaded; None without ECC."""
    count = query(nvml, "nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE)
    return None if count is None else int(count)


def occupants(nvml: GpuNvml, handle: object) -> list[Occupant]:
    """The processes that hold a context on this GPU."""
    calls = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
    listed = [entry for call in calls for entry in query(nvml, call, handle) or ()]
    return [Occupant(int(entry.pid), entry.usedGpuMemory) for entry in listed]


def busy_since(nvml: GpuNvml, handle: object, since_us: int) -> tuple[list[Occupant], int]:
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
    """Of (current, pending)."""
    return int(modes[0]) if isinstance(modes, list | tuple) and modes else None


def _switch(mode: int | None) -> str | None:
    return None if mode is None else ("on" if mode else "off")
