"""Datasheets."""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Args:
        name: its hardware kind.
        bf16_flops, fp8_flops: peak of dense matrix arithmetic, FLOP/s; None where it has no fp8.
        memory_bytes: total memory as CUDA reports it, not the round figure in the product name. An engine's
            utilization flag is a share of this number.
        bandwidth_bytes_per_s: of that memory.
        link_bytes_per_s: NVLink, one direction; None where GPUs talk over PCIe.
        pcie_bytes_per_s: one direction.
        power_w: limit.
    """

    name: str
    bf16_flops: float
    fp8_flops: float | None
    memory_bytes: int
    bandwidth_bytes_per_s: float
    link_bytes_per_s: float | None
    pcie_bytes_per_s: float
    power_w: float

    @property
    def peer_bytes_per_s(self) -> float:
        """Between two GPUs, one direction: NVLink where there is one."""
        return self.link_bytes_per_s or self.pcie_bytes_per_s


_GPUS = (
    Gpu("l4", 121e12, 242e12, int(22.03 * _GIB), 300e9, None, 32e9, 72.0),
    Gpu("a100", 312e12, None, int(79.15 * _GIB), 2.039e12, 300e9, 32e9, 400.0),
    Gpu("h100", 989e12, 1979e12, int(79.19 * _GIB), 3.35e12, 450e9, 64e9, 700.0),
    Gpu("h200", 989e12, 1979e12, int(139.81 * _GIB), 4.8e12, 450e9, 64e9, 700.0),
)

GPUS = {gpu.name: gpu for gpu in _GPUS}
