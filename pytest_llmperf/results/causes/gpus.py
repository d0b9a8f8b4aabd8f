"""Faults of the GPUs of a run."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmperf.results.cause import Fault


@dataclass(frozen=True, slots=True)
class GpuContended(Fault):
    text: str

    def reason(self) -> str:
        return (f"the GPU was contended: {self.text}. End that program, give this run a GPU of its own with "
                "CUDA_VISIBLE_DEVICES, and run the test again.")


@dataclass(frozen=True, slots=True)
class GpuThrottled(Fault):
    """Heat or the power supply lowered the clocks in `samples` of `of_samples`."""

    throttle_reasons: list[str]
    samples: int
    of_samples: int
    temperature_c: int | None = None

    def reason(self) -> str:
        heat = "" if self.temperature_c is None else f", up to {self.temperature_c} °C"
        return (f"the GPU was throttled ({', '.join(self.throttle_reasons)}) in {self.samples} of {self.of_samples} "
                f"samples{heat}, so the engine did not determine its clocks. Check cooling and power, let the GPU "
                "rest, and run the test again.")


@dataclass(frozen=True, slots=True)
class GpuFault(Fault):
    text: str

    def reason(self) -> str:
        return (f"{self.text}. Look at `nvidia-smi -q` and the kernel's log (dmesg) before you measure on this GPU "
                "again.")


@dataclass(frozen=True, slots=True)
class GpusMixed(Fault):
    names: list[str]

    def reason(self) -> str:
        return (f"the server ran on several GPU models, {' and '.join(self.names)}: choose equal GPUs with "
                "CUDA_VISIBLE_DEVICES.")


@dataclass(frozen=True, slots=True)
class GpuPartitioned(Fault):
    gpu: int
    text: str

    def reason(self) -> str:
        return (f"GPU {self.gpu} ({self.text}) is partitioned (MIG), and a slice is not the hardware of the test's "
                "marker. Switch MIG off with nvidia-smi -mig 0.")


@dataclass(frozen=True, slots=True)
class GpuSettingsChanged(Fault):
    gpu: int
    settings: list[str]

    def reason(self) -> str:
        return (f"the settings of GPU {self.gpu} differ from those of the first run: {', '.join(self.settings)}. "
                "Measure again.")
