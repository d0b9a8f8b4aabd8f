"""What accelerators, CPUs and the server said while a run went on. Frozen; times count from the run's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU. A value is None if the driver does not report it.

    Args:
        at_ns: nanoseconds after the run's start; below 0 while the load generator was still starting.
        device: NVML's index.
        utilization_pct: share of the driver's last sampling period in which a kernel ran.
        memory_used_bytes: memory of all processes. The driver's own reserve is excluded if the driver reports it apart.
        sm_clock_mhz, memory_clock_mhz: current clocks.
        power_w: power draw; of Ampere and later GPUs the mean of the last second.
        energy_j: energy since the driver was loaded.
        temperature_c: temperature of the GPU's core.
        throttle_reasons: NVML's clock event reasons, a bit mask.
    """

    at_ns: int
    device: int
    utilization_pct: int | None = None
    memory_used_bytes: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    throttle_reasons: int | None = None


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU that the server may use, and how it was set when the run began.

    Args:
        index: NVML's.
        name: its model.
        settings: persistence, ECC, MIG, power limit, application clocks; name → value as text.
    """

    index: int
    name: str
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CpuUse:
    """What became of this machine's CPU time, of all its CPUs and whoever used them, as shares.

    Args:
        busy: worked.
        stolen: taken by the hypervisor for other guests while something here wanted to run; 0 where there is none.
    """

    busy: float
    stolen: float


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A process on a GPU of the run that this session did not start.

    Args:
        device: NVML's index.
        pid: process id.
        memory_bytes: largest GPU memory of the process; None if the driver does not report memory per process.
        sm_pct: largest SM utilization of the process, in percent; None if the driver does not report processes.
        name, user: name and user of the process; None if the process had already ended when the session read them.
    """

    device: int
    pid: int
    memory_bytes: int | None = None
    sm_pct: int | None = None
    name: str | None = None
    user: str | None = None

    def __str__(self) -> str:
        who = f"pid {self.pid}" + (f" ({self.name or '?'} of {self.user or '?'})" if self.name or self.user else "")
        held = "an unknown amount of memory" if self.memory_bytes is None else f"{self.memory_bytes / 2**20:,.0f} MiB"
        used = "" if self.sm_pct is None else f" and used up to {self.sm_pct} % of the SMs"
        return f"{who} held {held} of GPU {self.device}{used}"


@dataclass(frozen=True, slots=True)
class GpuTrace:
    """The GPUs of one run.

    Args:
        devices: GPUs that the server may use.
        samples: readings in the order of time.
        strangers: foreign processes on these GPUs.
        pids_visible: whether the driver lists process ids of this machine. False in a container that hides process ids,
            so foreign processes cannot be detected. None if the driver never listed a process.
        faults: lost GPUs, uncorrected memory errors and Xids, one sentence each.
        problem: why samples are missing; None if no samples are missing.
        sample_ms: mean time to sample all GPUs once; None without samples.
    """

    devices: tuple[GpuDevice, ...]
    samples: tuple[GpuSample, ...] = ()
    strangers: tuple[ForeignProcess, ...] = ()
    pids_visible: bool | None = None
    faults: tuple[str, ...] = ()
    problem: str | None = None
    sample_ms: float | None = None

    @property
    def contended(self) -> str | None:
        """Sentence about the foreign processes on the GPUs; None if no foreign process is known."""
        return "; ".join(map(str, self.strangers)) or None

    def columns(self) -> dict[str, list[float | None]]:
        """The samples as a table: name → one value per sample."""
        return {field.name: [getattr(sample, field.name) for sample in self.samples] for field in fields(GpuSample)}


@dataclass(frozen=True, slots=True)
class GaugeSample:
    """One sample of the server's gauges: name → value; `at_ns` as in `GpuSample`."""

    at_ns: int
    values: Mapping[str, float]


def gauge_columns(samples: tuple[GaugeSample, ...]) -> dict[str, list[float | None]]:
    """Gauges as a table: name → one value per sample. A value is None if the sample does not have the gauge."""
    names = sorted({name for sample in samples for name in sample.values})
    stamps: dict[str, list[float | None]] = {"at_ns": [sample.at_ns for sample in samples]}
    return stamps | {name: [sample.values.get(name) for sample in samples] for name in names}
