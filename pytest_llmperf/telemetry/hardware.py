"""The hardware of this machine: the GPUs that NVML lists, and the CPU."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from pytest_llmperf.kinds import CPU, GPU_KINDS, OTHER_GPU, HardwareKind
from pytest_llmperf.telemetry.cpu import Cpu, read_cpu
from pytest_llmperf.telemetry.nvml import Nvml, loss_reason, pynvml, query, read_settings

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that CUDA shows to a process with this environment, in its order.

    Like CUDA it takes indices and beginnings of UUIDs, and ends at the first entry that names no GPU. Indices count as
    NVML does, which is CUDA's own order where all GPUs are of one model.
    """
    listed = environ.get(VARIABLE)
    if listed is None:
        return tuple(gpus)
    visible: list[Gpu] = []
    for entry in (part.strip() for part in listed.split(",")):
        named = [gpu for gpu in gpus if _names(entry, gpu)]
        if len(named) != 1:
            break
        visible += named
    return tuple(visible)


def _names(entry: str, gpu: Gpu) -> bool:
    """A MIG slice is named by its own UUID, `MIG-GPU-<uuid of the GPU>/…` on older drivers."""
    if entry.isdigit():
        return int(entry) == gpu.index
    return bool(gpu.uuid and entry) and (gpu.uuid.startswith(entry) or entry.startswith(f"MIG-{gpu.uuid}/"))


NVML_TIMEOUT_S = 10.0
_MEMORY_TOLERANCE = 0.08  # NVML shows less where ECC takes some


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device.

    Args:
        index: NVML's index.
        name: GPU model.
        kind: marker of the GPU model; None if the model has no marker.
        memory_bytes: total memory; None if unknown.
        uuid: NVML's UUID; "" if NVML does not report it.
        settings: see `read_settings`.
        problem: why NVML cannot read the GPU; then all other facts are unknown. None if NVML can read the GPU.
    """

    index: int
    name: str
    kind: str | None
    memory_bytes: int | None = None
    uuid: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware of this machine, for markers and fingerprints.

    Args:
        gpus: visible GPUs in the order of CUDA_VISIBLE_DEVICES; without this variable all GPUs in NVML's order.
        hidden: GPUs that CUDA_VISIBLE_DEVICES hides.
        driver: NVIDIA driver version; None without a driver.
        cuda: latest CUDA version that the driver supports, e.g. "13.0"; None if the driver does not report a version.
        cpu: facts about the CPU; None if they were not read or do not matter.
        problem: why NVML could not be read; None if NVML was read.
        emulated: whether the hardware is emulated and does not exist.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    problem: str | None = None
    emulated: bool = False
    hidden: tuple[Gpu, ...] = ()
    cuda: str | None = None
    cpu: Cpu | None = None

    @property
    def kind(self) -> str:
        """Hardware kind of the first GPU; `OTHER_GPU` if its model has no marker; "cpu" without a GPU."""
        return (self.gpus[0].kind or OTHER_GPU) if self.gpus else CPU

    def labelled(self, kind: str) -> str:
        """A kind as conditions state it: "h200" on hardware, "emulated h200" on the emulator."""
        return f"emulated {kind}" if self.emulated else kind

    def __str__(self) -> str:
        if self.emulated:
            return f"{len(self.gpus)} × {self.gpus[0].name}"
        if self.gpus:
            return f"{len(self.gpus)} × {self.gpus[0].name}, driver {self.driver}"
        return f"no GPU ({self.problem})" if self.problem else "no GPU"


def emulated_hardware(kind: str, gpus: int) -> Hardware:
    """The GPUs of an emulated host. Each name starts with "emulated", so every display shows that the GPU is
    emulated."""
    return Hardware(tuple(Gpu(index, f"emulated {kind}", kind) for index in range(gpus)), emulated=True)


def gpu_kind(name: str, memory_bytes: int | None = None) -> str | None:
    """Marker of an NVML device: by whole words, so that an L40 is no L4, and by what limits depend on.

    >>> gpu_kind("NVIDIA H100 80GB HBM3"), gpu_kind("NVIDIA L40S"), gpu_kind("NVIDIA A100-SXM4-80GB")
    ('h100', None, 'a100')
    >>> gpu_kind("NVIDIA H100 PCIe"), gpu_kind("NVIDIA A100-SXM4-40GB", 40 * 2**30)
    (None, None)
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    fitting = [kind for kind in GPU_KINDS.values() if kind.nvml_words <= words and not words & kind.other_words
               and _fits(kind, memory_bytes)]
    return max(fitting, key=lambda kind: len(kind.nvml_words)).name if fitting else None


def _fits(kind: HardwareKind, memory_bytes: int | None) -> bool:
    return memory_bytes is None or abs(memory_bytes / kind.nvml_memory_bytes - 1) <= _MEMORY_TOLERANCE


def detect(
    nvml: Nvml | None = None, timeout_s: float = NVML_TIMEOUT_S, environ: Mapping[str, str] = os.environ
) -> Hardware:
    """Ask NVML, for at most `timeout_s`: a hanging driver must not hang every pytest run."""
    hardware = call_with_timeout(lambda: _query_driver(nvml), timeout_s)
    hardware = replace(hardware or Hardware(problem=f"NVML did not answer within {timeout_s:g} s"), cpu=read_cpu())
    seen = visible_gpus(hardware.gpus, environ)
    if hardware.gpus and not seen:
        problem = f"{VARIABLE}={environ[VARIABLE]!r} names none of its {len(hardware.gpus)} GPUs"
        return Hardware(problem=problem, cpu=hardware.cpu)
    if (dead := next((gpu for gpu in seen if gpu.problem is not None), None)) is not None:
        return Hardware(problem=dead.problem, cpu=hardware.cpu)
    return replace(hardware, gpus=seen, hidden=tuple(gpu for gpu in hardware.gpus if gpu not in seen))


def _query_driver(nvml: Nvml | None) -> Hardware:
    nvml = nvml or pynvml()
    if nvml is None:
        return Hardware(problem="nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except Exception as error:
        return Hardware(problem=f"NVML: {error}")
    try:
        gpus = tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        version = query(nvml, "nvmlSystemGetCudaDriverVersion")
        cuda = None if version is None else f"{version // 1000}.{version % 1000 // 10}"
        return Hardware(gpus, driver=str(nvml.nvmlSystemGetDriverVersion()), cuda=cuda)
    except Exception as error:
        return Hardware(problem=f"NVML: {error}")
    finally:
        with suppress(Exception):  # what was read is read
            nvml.nvmlShutdown()


def _gpu(nvml: Nvml, index: int) -> Gpu:
    """One GPU. An error of this GPU becomes its `problem` and does not affect the reading of the other GPUs."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = str(nvml.nvmlDeviceGetName(handle))
        total = getattr(query(nvml, "nvmlDeviceGetMemoryInfo", handle), "total", None)  # none where the CPU shares it
        uuid = query(nvml, "nvmlDeviceGetUUID", handle) or ""
        return Gpu(index, name, gpu_kind(name, total), total, str(uuid), read_settings(nvml, handle))
    except Exception as error:
        return Gpu(index, f"GPU {index}", None, problem=f"NVML: GPU {index}: {loss_reason(error) or error}")


T = TypeVar("T")


def call_with_timeout(work: Callable[[], T], timeout_s: float) -> T | None:
    """What `work` returns; None where that takes longer. The thread is left behind: nothing ends a driver call.

    Args:
        work: raises nothing.
    """
    answer: list[T] = []
    thread = threading.Thread(target=lambda: answer.append(work()), daemon=True, name="llmperf-nvml")
    thread.start()
    thread.join(timeout_s)
    return answer[0] if answer else None
