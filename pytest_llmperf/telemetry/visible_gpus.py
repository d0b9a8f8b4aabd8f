"""Which GPUs a process may use, as CUDA_VISIBLE_DEVICES says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

VARIABLE = "CUDA_VISIBLE_DEVICES"


class Identified(Protocol):
    """What NVML calls a GPU."""

    @property
    def index(self) -> int: ...
    @property
    def uuid(self) -> str: ...


G = TypeVar("G", bound=Identified)


def visible_gpus(gpus: Sequence[G], environ: Mapping[str, str]) -> tuple[G, ...]:
    """The GPUs that CUDA shows to a process with this environment, in its order.

    Like CUDA it takes indices and beginnings of UUIDs, and ends at the first entry that names no GPU. Indices count as
    NVML does, which is CUDA's own order where all GPUs are of one model.
    """
    listed = environ.get(VARIABLE)
    if listed is None:
        return tuple(gpus)
    visible: list[G] = []
    for entry in (part.strip() for part in listed.split(",")):
        named = [gpu for gpu in gpus if _names(entry, gpu)]
        if len(named) != 1:
            break
        visible += named
    return tuple(visible)


def _names(entry: str, gpu: Identified) -> bool:
    """A MIG slice is named by its own UUID, `MIG-GPU-<uuid of the GPU>/…` on older drivers."""
    if entry.isdigit():
        return int(entry) == gpu.index
    return bool(gpu.uuid and entry) and (gpu.uuid.startswith(entry) or entry.startswith(f"MIG-{gpu.uuid}/"))
