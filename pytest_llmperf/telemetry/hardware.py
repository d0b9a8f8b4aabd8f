"""Which accelerators this machine has, as NVML sees them."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Protocol, cast

GPU_KINDS = ("l4", "a100", "h100", "h200")
KINDS = (*GPU_KINDS, "cpu")
NVML_TIMEOUT_S = 10.0


class Nvml(Protocol):
    """The part of pynvml that is used here; tests hand in their own."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...
    def nvmlDeviceGetName(self, handle: object) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: object) -> object: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. `kind` is None for a model that no marker stands for."""

    index: int
    name: str
    kind: str | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Hardware:
    """What this machine is, for markers and fingerprints.

    Args:
        gpus: as NVML lists them.
        driver: NVIDIA driver version; None without one.
        problem: why NVML could not be asked, where it could not.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    problem: str | None = None

    @property
    def kind(self) -> str | None:
        """Kind of the first GPU, "cpu" where there is none, None for a GPU that no marker stands for."""
        return self.gpus[0].kind if self.gpus else "cpu"

    def __str__(self) -> str:
        if self.gpus:
            return f"{len(self.gpus)} × {self.gpus[0].name}, driver {self.driver}"
        return f"no GPU ({self.problem})" if self.problem else "no GPU"


def gpu_kind(name: str) -> str | None:
    """Marker of an NVML device name: whole words, so that an L40 is no L4.

    >>> gpu_kind("NVIDIA H100 80GB HBM3"), gpu_kind("NVIDIA L40S"), gpu_kind("NVIDIA A100-SXM4-80GB")
    ('h100', None, 'a100')
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return next((kind for kind in GPU_KINDS if kind in words), None)


def detect(nvml: Nvml | None = None, timeout_s: float = NVML_TIMEOUT_S) -> Hardware:
    """Ask NVML, for at most `timeout_s`: a hanging driver must not hang every pytest run."""
    answer: list[Hardware] = []
    thread = threading.Thread(target=lambda: answer.append(_ask(nvml)), daemon=True, name="llmperf-nvml")
    thread.start()
    thread.join(timeout_s)
    return answer[0] if answer else Hardware(problem=f"NVML did not answer within {timeout_s:g} s")


def _ask(nvml: Nvml | None) -> Hardware:
    nvml = nvml or _pynvml()
    if nvml is None:
        return Hardware(problem="nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except Exception as error:
        return Hardware(problem=f"NVML: {error}")
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        gpus = tuple(_gpu(nvml, index, handle) for index, handle in enumerate(handles))
        return Hardware(gpus, driver=str(nvml.nvmlSystemGetDriverVersion()))
    except Exception as error:
        return Hardware(problem=f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()


def _pynvml() -> Nvml | None:
    try:
        import pynvml
    except ImportError:
        return None
    return cast("Nvml", pynvml)


def _gpu(nvml: Nvml, index: int, handle: object) -> Gpu:
    name = str(nvml.nvmlDeviceGetName(handle))
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(index, name, gpu_kind(name), int(getattr(memory, "total", 0)))
