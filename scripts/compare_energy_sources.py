#!/usr/bin/env python3
"""Energy of a GPU by its counter and by its sampled power, under loads of several durations: a JSON line for each.

    python scripts/compare_energy_sources.py

Needs an NVIDIA GPU, PyTorch and nvidia-ml-py. docs/evidence/energy.md has the results of one H100.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from pytest_llmperf.clock import SystemClock, seconds
from pytest_llmperf.metrics.energy import BY_COUNTER, BY_POWER, gpu_counters
from pytest_llmperf.telemetry.gpu_watch import GpuWatch
from pytest_llmperf.telemetry.hardware import Gpu, detect
from pytest_llmperf.telemetry.nvml import pynvml

INTERVAL_S, REST_S = 0.2, 1.5
DURATIONS_S = (2, 5, 15)


def main() -> None:
    loads = {"none": time.sleep, **_loads()}
    gpu = detect().gpus[0]
    for name, load in loads.items():
        for duration_s in DURATIONS_S:
            print(json.dumps({"load": name, "duration_s": duration_s, **_measured(load, duration_s, gpu)}))


def _measured(load: Callable[[float], None], duration_s: float, gpu: Gpu) -> dict[str, float | None]:
    """Joules of one load by both sources. The load begins on an idle GPU, and sampling half a second earlier."""
    nvml, clock = pynvml(), SystemClock()
    assert nvml is not None, "pip install nvidia-ml-py"
    time.sleep(REST_S)
    watch = GpuWatch(nvml, [gpu], tuple, clock, INTERVAL_S)
    watch.start()
    clock.sleep_ns(seconds(0.5))
    began_ns = clock.now_ns()
    load(duration_s)
    ended_ns = clock.now_ns()
    watch.stop()
    energies = gpu_counters(watch.trace(began_ns).samples, 0, ended_ns - began_ns)
    return {name: energies.get(name) for name in (BY_COUNTER, BY_POWER)}


def _loads() -> dict[str, Callable[[float], None]]:
    """Loads that run for a number of seconds: bound by arithmetic, by memory bandwidth, and in bursts."""
    import torch

    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    memory = torch.empty(2**30, device="cuda", dtype=torch.bfloat16)

    def repeated(step: Callable[[], object], duration_s: float) -> None:
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            for _ in range(20):
                step()
            torch.cuda.synchronize()

    def bursts(duration_s: float) -> None:
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            repeated(lambda: matrix @ matrix, 0.3)
            time.sleep(0.3)

    return {"matrix products": lambda duration_s: repeated(lambda: matrix @ matrix, duration_s),
            "memory": lambda duration_s: repeated(lambda: memory.add_(1), duration_s), "bursts": bursts}


if __name__ == "__main__":
    main()
