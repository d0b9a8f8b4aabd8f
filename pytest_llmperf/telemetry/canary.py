"""A canary of each session: how fast this host is at work that never changes. It is recorded and never judged.

Hosts with the same GPU differ by their CPU and by the path to the GPU. With the canary beside the results, such
differences can be taken out later.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.process.kernel import close_pipes, kill_child
from pytest_llmperf.telemetry.canary_gpu import REPEATS, median_s

PROGRAM = Path(__file__).with_name("canary_gpu.py")
GPU_TIMEOUT_S = 4.0
ROUNDS = 50_000
COPIED_BYTES = 32 * 2**20


def canary(program: Path = PROGRAM, timeout_s: float = GPU_TIMEOUT_S) -> dict[str, float | str]:
    """Name → value: one core, a copy in host memory, kernel launches of the first visible GPU and a copy to the host.

    What cannot be measured is missing, with the reason under "not_seen".
    """
    return {"one_core_ms": _one_core_ms(), "host_copy_gb_per_s": _host_copy_gb_per_s()} | _of_gpu(program, timeout_s)


def _one_core_ms() -> float:
    """Milliseconds of a fixed loop in Python."""
    def loop() -> None:
        total = 0
        for number in range(ROUNDS):
            total = (total * 31 + number) % 1_000_003

    return round(median_s(loop, REPEATS) * 1e3, 3)


def _host_copy_gb_per_s() -> float:
    source, target = np.ones(COPIED_BYTES, np.uint8), np.zeros(COPIED_BYTES, np.uint8)
    return round(COPIED_BYTES / median_s(lambda: np.copyto(target, source), REPEATS) / 1e9, 2)


def _of_gpu(program: Path, timeout_s: float) -> dict[str, float | str]:
    """The figures of the GPU, from a process that ends afterwards, so that no CUDA context stays on the GPU."""
    try:
        child = subprocess.Popen([sys.executable, "-I", str(program)], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as error:
        return {"not_seen": str(error)}
    try:
        output, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {"not_seen": f"the GPU did not answer within {timeout_s:g} s"}
    finally:
        kill_child(child)  # which waits for a limited time: a driver may block the child in the kernel
        close_pipes(child)
    with suppress(ValueError, AttributeError):
        return {name: value if isinstance(value, str) else round(value, 3)
                for name, value in json.loads(output).items() if isinstance(value, str | float)}
    return {"not_seen": f"the program for the GPU ended with exit code {child.returncode}"}
