"""Hardware, driver, and what the operating system allows."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_llmperf.doctor.place import Finding, Place
from pytest_llmperf.doctor.stored import stored_kind
from pytest_llmperf.kinds import GPU_KINDS, OTHER_GPU

PART = "hardware"
GIB = 1 << 30
LEAST_CORES = 2
LEAST_SHM_BYTES = 1 * GIB
LEAST_OPEN_FILES = 4096
LEAST_FREE_BYTES = 5 * GIB


def machine(place: Place) -> Iterator[Finding]:
    """Findings about accelerators, and about operating system limits that are too low."""
    yield from _accelerators(place)
    yield from _limits(place)


def _accelerators(place: Place) -> Iterator[Finding]:
    hardware = place.hardware
    if not hardware.gpus:
        if place.has_device:
            yield Finding(PART, f"there is an NVIDIA device, and {hardware}",
                          "make `nvidia-smi` work first: driver, rights on /dev/nvidia*, the container's GPU option")
        else:
            yield Finding(PART, f"{hardware}: runs what is marked cpu (-m cpu), and everything with --emulate KIND")
        return
    for gpu in hardware.gpus:
        memory = "" if gpu.memory_bytes is None else f", {gpu.memory_bytes / GIB:.0f} GiB"
        yield Finding(PART, f"GPU {gpu.index}: {gpu.name}{memory}, kind {gpu.kind or OTHER_GPU}")
    cuda = "" if hardware.cuda is None else f", CUDA {hardware.cuda}"
    yield Finding(PART, f"driver {hardware.driver}{cuda}")
    kinds = {gpu.kind or OTHER_GPU for gpu in hardware.gpus}
    if len(kinds) > 1:
        yield Finding(PART, f"GPUs of several kinds: {', '.join(sorted(kinds))}; tests run as {hardware.kind}",
                      "show one kind only, with CUDA_VISIBLE_DEVICES")
    if hardware.kind == OTHER_GPU:
        yield Finding(PART, f"no marker stands for {hardware.gpus[0].name}",
                      f"run unmarked tests, or on one of {', '.join(GPU_KINDS)}; "
                      f"its baselines lie under {stored_kind(hardware)}")


def _limits(place: Place) -> Iterator[Finding]:
    if (cpu := place.hardware.cpu) is not None:
        yield Finding(PART, f"{cpu.cores} CPU cores of {cpu.model}",
                      "" if cpu.cores >= LEAST_CORES else "give it another: the load generator needs one for itself")
    if place.shm_bytes is None or place.shm_bytes < LEAST_SHM_BYTES:
        size = "no shared memory" if place.shm_bytes is None else f"{place.shm_bytes / GIB:.2g} GiB of shared memory"
        yield Finding(PART, f"{size}: too little for several GPUs",
                      "docker run --shm-size=8g, or --ipc=host; in a pod an emptyDir with `medium: Memory` at /dev/shm")
    if place.open_files < LEAST_OPEN_FILES:
        yield Finding(PART, f"at most {place.open_files} open files: each stream is one", "raise it: ulimit -Hn 65536")
    if place.free_bytes < LEAST_FREE_BYTES:
        yield Finding(PART, f"{place.free_bytes / GIB:.1f} GiB of disk left for logs and run folders",
                      f"make room, or write them elsewhere: --llmperf-runs=DIR (now {place.settings.runs_dir})")
