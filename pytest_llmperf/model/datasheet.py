"""What datasheets say of the hardware kinds."""

from __future__ import annotations

# Bytes/s of one GPU's memory, as NVIDIA's datasheets have it: L4; A100 80GB SXM; H100 SXM; H200 SXM.
MEMORY_BANDWIDTH = {"l4": 300e9, "a100": 2.039e12, "h100": 3.35e12, "h200": 4.8e12}

# GiB of it, as NVML has them. Suites' limits are written for these models: an A100 40GB is another GPU.
MEMORY_GIB = {"l4": 22.5, "a100": 80.0, "h100": 80.0, "h200": 140.4}
