"""Events on the GPUs that make a run invalid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_llmperf.model.telemetry import GpuDevice, GpuTrace
from pytest_llmperf.results.causes.runs import (
    GpuContended,
    GpuFault,
    GpuPartitioned,
    GpuSettingsChanged,
    GpusMixed,
    GpuThrottled,
)
from pytest_llmperf.results.check import Fault
from pytest_llmperf.telemetry.nvml import reasons_in

# Heat and the power supply's brake. The software power cap is how an H200 under load works: recorded, and no gate.
THROTTLED = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})


def gpu_problems(trace: GpuTrace, first: GpuTrace | None) -> Iterator[Fault]:
    """Why a run on these GPUs is invalid.

    Args:
        trace: of the run.
        first: of the measurement's first run, whose settings all others must have.
    """
    if trace.contended is not None:
        yield GpuContended(trace.contended)
    yield from _throttled(trace)
    for fault in trace.faults:
        yield GpuFault(fault)
    yield from _devices(trace.devices)
    if first is not None:
        yield from _changed(first.devices, trace.devices)


def _throttled(trace: GpuTrace) -> Iterator[Fault]:
    samples = [sample for sample in trace.samples if sample.throttle_reasons is not None]
    hit = [sample for sample in samples if THROTTLED & set(reasons_in(sample.throttle_reasons or 0))]
    if not hit:
        return
    reasons = Counter(reason for sample in hit for reason in reasons_in(sample.throttle_reasons or 0)
                      if reason in THROTTLED)
    hottest = max((sample.temperature_c for sample in hit if sample.temperature_c is not None), default=None)
    yield GpuThrottled(list(reasons), len(hit), len(samples), hottest)


def _devices(devices: tuple[GpuDevice, ...]) -> Iterator[Fault]:
    names = list(dict.fromkeys(device.name for device in devices))
    if len(names) > 1:
        yield GpusMixed(names)
    for device in devices:
        if dict(device.settings).get("mig") == "on":
            yield GpuPartitioned(device.index, device.name)


def _changed(earlier: tuple[GpuDevice, ...], now: tuple[GpuDevice, ...]) -> Iterator[Fault]:
    by_index = {device.index: dict(device.settings) for device in earlier}
    for device in now:
        settings = by_index.get(device.index, {})
        changed = [f"{name} {settings[name]} → {value}" for name, value in device.settings
                   if name in settings and settings[name] != value]
        if changed:
            yield GpuSettingsChanged(device.index, changed)
