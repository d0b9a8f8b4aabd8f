"""What accelerators, CPUs and the server said while a run went on. Frozen; times count from the run's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU; None is what its driver does not tell.

    Args:
        at_ns: nanoseconds after the run's start; below 0 while the load generator was still starting.
        device: NVML's index.
        utilization_pct: share of the driver's last sampling period in which a kernel ran.
        memory_used_bytes: by all processes; without what the driver reserves, where it tells the two apart.
        sm_clock_mhz, memory_clock_mhz: current clocks.
        power_w: drawn.
        temperature_c: of the GPU's core.
        throttle_reasons: NVML's clock event reasons, a bit mask.
    """

    at_ns: int
    device: int
    utilization_pct: int | None = None
    memory_used_bytes: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
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
    """A process on one of our GPUs that is none of ours.

    Args:
        device: NVML's index.
        pid: process id.
        memory_bytes: the most that it held; None where the driver does not tell.
        sm_pct: the most that it used of the SMs; None where the driver does not tell.
        name, user: of the process, where it still ran when they were asked for.
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
        devices: those that the server may use.
        samples: in the order of time.
        strangers: who else used them.
        pids_visible: whether the driver's process ids are this machine's; False in a container that hides them, where
            nobody can tell a stranger; None where no process was ever listed.
        faults: lost GPUs, uncorrected memory errors and Xids, one sentence each.
        problem: why samples are missing, where they are.
        sample_ms: what sampling all GPUs once took, mean; None without samples.
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
        """Who else used the GPUs, as a sentence; None where nobody is known to have."""
        return "; ".join(map(str, self.strangers)) or None

    def columns(self) -> dict[str, list[float | None]]:
        """The samples as a table: name → one value per sample."""
        return {field.name: [getattr(sample, field.name) for sample in self.samples] for field in fields(GpuSample)}


@dataclass(frozen=True, slots=True)
class GaugeSample:
    """The server's gauges at one moment: name → value; `at_ns` as in `GpuSample`."""

    at_ns: int
    values: Mapping[str, float]


def gauge_columns(samples: tuple[GaugeSample, ...]) -> dict[str, list[float | None]]:
    """Gauges as a table: name → one value per sample, None where the server did not show it then."""
    names = sorted({name for sample in samples for name in sample.values})
    stamps: dict[str, list[float | None]] = {"at_ns": [sample.at_ns for sample in samples]}
    return stamps | {name: [sample.values.get(name) for sample in samples] for name in names}
