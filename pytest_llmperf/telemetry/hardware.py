"""The hardware of this machine: the GPUs that NVML or AMD SMI lists, and the CPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from pytest_llmperf.errors import HardwareBusy
from pytest_llmperf.kinds import CPU, GPU_KINDS, OTHER_GPU
from pytest_llmperf.kinds.rows import fits_memory, words_of
from pytest_llmperf.telemetry.cpu import Cpu, read_cpu
from pytest_llmperf.telemetry.nvml import AmdSmi, Nvml, amdsmi, loss_reason, pynvml, query, read_settings

VARIABLE = "CUDA_VISIBLE_DEVICES"
AMD_VARIABLE = "HIP_VISIBLE_DEVICES"  # goes before the other on AMD's GPUs


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


def words_of_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[str]:
    """A word for each visible GPU: from CUDA_VISIBLE_DEVICES, or without this variable the index.

    Args:
        gpus: the first GPUs that CUDA shows to a process with this environment.
    """
    listed = environ.get(VARIABLE)
    return [str(gpu.index) for gpu in gpus] if listed is None else [
        word.strip() for word in listed.split(",")][: len(gpus)]


def showing_only(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that show only the named GPUs to a process that inherits this environment."""
    names = (VARIABLE, AMD_VARIABLE) if AMD_VARIABLE in environ else (VARIABLE,)
    return dict.fromkeys(names, ",".join(words))


NVML_TIMEOUT_S = 10.0


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
        shared_by: number of test processes that measure on this host at the same time, each on its GPUs.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    problem: str | None = None
    emulated: bool = False
    hidden: tuple[Gpu, ...] = ()
    cuda: str | None = None
    cpu: Cpu | None = None
    shared_by: int = 1

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

    Raises:
        ValueError: two kinds have equally many words of the name.

    >>> gpu_kind("NVIDIA H100 80GB HBM3"), gpu_kind("NVIDIA L40"), gpu_kind("NVIDIA A100-SXM4-80GB")
    ('h100', None, 'a100')
    >>> gpu_kind("NVIDIA H100 PCIe"), gpu_kind("NVIDIA A100-SXM4-40GB", 40 * 2**30)
    (None, None)
    """
    words = words_of(name)
    fitting = [kind for kind in GPU_KINDS.values() if kind.nvml_words <= words and not words & kind.other_words
               and fits_memory(kind, memory_bytes)]
    most = max((len(kind.nvml_words) for kind in fitting), default=0)
    nearest = [kind.name for kind in fitting if len(kind.nvml_words) == most]
    if len(nearest) > 1:
        raise ValueError(f"{name} is of the kinds {' and '.join(nearest)}. "
                         "Give one of these kinds a further word of nvml_words")
    return nearest[0] if nearest else None


def detect(
    nvml: Nvml | None = None, timeout_s: float = NVML_TIMEOUT_S, environ: Mapping[str, str] = os.environ,
    smi: AmdSmi | None = None,
) -> Hardware:
    """Ask NVML, and AMD SMI if NVML shows no GPU, for at most `timeout_s`: a hanging driver must not hang every pytest
    run."""
    hardware = call_with_timeout(lambda: _query_drivers(nvml, smi), timeout_s)
    if hardware and hardware.gpus and hardware.cuda is None and AMD_VARIABLE in environ:
        environ = {**environ, VARIABLE: environ[AMD_VARIABLE]}
    hardware = replace(hardware or Hardware(problem=f"NVML did not answer within {timeout_s:g} s"), cpu=read_cpu())
    seen = visible_gpus(hardware.gpus, environ)
    if hardware.gpus and not seen:
        problem = f"{VARIABLE}={environ[VARIABLE]!r} names none of its {len(hardware.gpus)} GPUs"
        return Hardware(problem=problem, cpu=hardware.cpu)
    if (dead := next((gpu for gpu in seen if gpu.problem is not None), None)) is not None:
        return Hardware(problem=dead.problem, cpu=hardware.cpu)
    return replace(hardware, gpus=seen, hidden=tuple(gpu for gpu in hardware.gpus if gpu not in seen))


def _query_drivers(nvml: Nvml | None, smi: AmdSmi | None) -> Hardware:
    nvidia = _query_driver(nvml)
    if nvidia.gpus or (smi := smi or amdsmi()) is None:
        return nvidia
    return _query_amd(smi) or nvidia


def _query_amd(smi: AmdSmi) -> Hardware | None:
    """AMD's GPUs; None if AMD SMI finds none."""
    try:
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
        gpus = tuple(_amd_gpu(smi, index, handle) for index, handle in enumerate(handles))
        driver = smi.amdsmi_get_gpu_driver_info(handles[0])["driver_version"] if handles else None
        return Hardware(gpus, driver=f"amdgpu {driver}") if gpus else None
    except Exception as error:
        return Hardware(problem=f"AMD SMI: {error}")
    finally:
        with suppress(Exception):
            smi.amdsmi_shut_down()


def _amd_gpu(smi: AmdSmi, index: int, handle: object) -> Gpu:
    name = str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"])
    total_bytes = int(smi.amdsmi_get_gpu_vram_info(handle)["vram_size"]) * 2**20  # AMD's "MB"
    return Gpu(index, name, gpu_kind(name, total_bytes), total_bytes, str(smi.amdsmi_get_gpu_device_uuid(handle)))


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
        total = getattr(query(nvml, "nvmlDeviceGetMemoryInfo", handle), "total", None)  # none if the CPU shares it
        uuid = query(nvml, "nvmlDeviceGetUUID", handle) or ""
        return Gpu(index, name, gpu_kind(name, total), total, str(uuid), read_settings(nvml, handle))
    except Exception as error:
        return Gpu(index, f"GPU {index}", None, problem=f"NVML: GPU {index}: {loss_reason(error) or error}")


T = TypeVar("T")


def call_with_timeout(work: Callable[[], T], timeout_s: float) -> T | None:
    """What `work` returns; None if that takes longer. The thread is left behind: nothing ends a driver call.

    Args:
        work: raises nothing.
    """
    answer: list[T] = []
    thread = threading.Thread(target=lambda: answer.append(work()), daemon=True, name="llmperf-nvml")
    thread.start()
    thread.join(timeout_s)
    return answer[0] if answer else None


def take_share(
    hardware: Hardware, processes: int, take: Callable[[int], bool], environ: MutableMapping[str, str] = os.environ
) -> Hardware:
    """Limit this process, and what it starts, to an equal share of the GPUs and CPUs of this host.

    The GPUs of a share are neighbours, and so are its CPUs. A GPU or CPU that is left over stays idle.

    Args:
        hardware: the visible GPUs; all of one model.
        processes: number of processes that measure at the same time.
        take: whether this process now has the given position, from 0, among these processes.
        environ: gets the variable CUDA_VISIBLE_DEVICES, and on AMD's GPUs HIP_VISIBLE_DEVICES where it is set.

    Returns:
        The hardware of the share. The whole hardware if there are fewer GPUs than processes: then the processes take
        turns.

    Raises:
        HardwareBusy: other processes have all positions.
    """
    if not 1 < processes <= len(hardware.gpus):
        return hardware
    position = next(filter(take, range(processes)), None)
    if position is None:
        raise HardwareBusy(f"{processes} other processes of this session have all {len(hardware.gpus)} GPUs of this "
                           "host. Start the session again.")
    own = _part(hardware.gpus, position, processes)
    environ.update(showing_only(_part(words_of_gpus(hardware.gpus, environ), position, processes), environ))
    if hasattr(os, "sched_getaffinity"):
        _stay_on(_part(sorted(os.sched_getaffinity(0)), position, processes))
    others = tuple(gpu for gpu in hardware.gpus if gpu not in own)
    return replace(hardware, gpus=own, hidden=(*others, *hardware.hidden), shared_by=processes)


def _part(all_: Sequence[T], position: int, processes: int) -> tuple[T, ...]:
    each = len(all_) // processes
    return tuple(all_[position * each : (position + 1) * each])


def _stay_on(cpus: Sequence[int]) -> None:
    with suppress(OSError):
        if cpus:
            os.sched_setaffinity(0, cpus)
