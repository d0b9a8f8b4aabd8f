"""What happened on the GPUs that makes a run no evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_llmperf.model.telemetry import GpuDevice, GpuTrace
from pytest_llmperf.telemetry.nvml import reasons_in

# Heat and the power supply's brake. The software power cap is how an H200 under load works: recorded, and no gate.
THROTTLED = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})


def gpu_problems(trace: GpuTrace, first: GpuTrace | None) -> Iterator[str]:
    """Why a run on these GPUs is no evidence.

    Args:
        trace: of the run.
        first: of the measurement's first run, whose settings all others must have.
    """
    if trace.contended is not None:
        yield (
            f"the GPU was contended: {trace.contended}. End it, give this run a GPU of its own with "
            "CUDA_VISIBLE_DEVICES, and run the test again."
        )
    yield from _throttled(trace)
    for fault in trace.faults:
        yield f"{fault}. Look at `nvidia-smi -q` and the kernel's log (dmesg) before anything else is measured there."
    yield from _devices(trace.devices)
    if first is not None:
        yield from _changed(first.devices, trace.devices)


def _throttled(trace: GpuTrace) -> Iterator[str]:
    samples = [sample for sample in trace.samples if sample.throttle_reasons is not None]
    hit = [sample for sample in samples if THROTTLED & set(reasons_in(sample.throttle_reasons or 0))]
    if not hit:
        return
    reasons = Counter(reason for sample in hit for reason in reasons_in(sample.throttle_reasons or 0)
                      if reason in THROTTLED)
    hottest = max((sample.temperature_c for sample in hit if sample.temperature_c is not None), default=None)
    heat = "" if hottest is None else f", up to {hottest} °C"
    yield (
        f"the GPU was throttled ({', '.join(reasons)}) in {len(hit)} of {len(samples)} samples{heat}: its clocks were "
        "not the engine's doing. See to its cooling and power, let it rest, and run the test again."
    )


def _devices(devices: tuple[GpuDevice, ...]) -> Iterator[str]:
    names = list(dict.fromkeys(device.name for device in devices))
    if len(names) > 1:
        yield f"the server ran on several models, {' and '.join(names)}: choose equal GPUs with CUDA_VISIBLE_DEVICES."
    for device in devices:
        if dict(device.settings).get("mig") == "on":
            yield (
                f"GPU {device.index} ({device.name}) is partitioned (MIG): a slice of it is not the hardware that the "
                "test's marker means. Switch it off with nvidia-smi -mig 0."
            )


def _changed(before: tuple[GpuDevice, ...], now: tuple[GpuDevice, ...]) -> Iterator[str]:
    by_index = {device.index: dict(device.settings) for device in before}
    for device in now:
        settings = by_index.get(device.index, {})
        changed = [f"{name} {settings[name]} → {value}" for name, value in device.settings
                   if name in settings and settings[name] != value]
        if changed:
            yield f"GPU {device.index} was set differently than in the first run: {', '.join(changed)}. Measure again."
