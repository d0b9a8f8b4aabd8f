"""Stores of KV cache below the GPU's memory, from the flags of vLLM's connectors and LMCache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_llmperf.emulator.config import Tier
from pytest_llmperf.emulator.flags.parser import StartError
from pytest_llmperf.emulator.quantities import UsageError
from pytest_llmperf.kinds.rows import HardwareKind

_GIB = 2**30
_LMCACHE = {"LMCacheConnectorV1": False, "LMCacheMPConnector": True}  # whether it is a server beside the engine
# At this share of its host memory the server drops so much of what it holds, a second later at most: its defaults.
_WATERMARK, _EVICTED_SHARE = 0.8, 0.2
# Of the link's peak, as vLLM's own counters had it on one H200: 32 to 39 of 64 GB/s in, 47 to 55 out.
_LOAD_SHARE, _STORE_SHARE = 0.55, 0.8
_HOST_LATENCY_S = 18e-3  # around the copies of one prompt; fitted to its first tokens there, with vLLM's own connector
_DISK_BYTES_PER_S = 5e9     # one PCIe 4 NVMe drive
_DISK_LATENCY_S = 300e-6
_LMCACHE_DEFAULTS: dict[str, str] = {
    "chunk_size": "256", "local_cpu": "true", "max_local_cpu_size": "5.0", "local_disk": "", "max_local_disk_size": "0",
}  # fmt: skip


def host_tier(gpu: HardwareKind, capacity_bytes: float, chunk_tokens: int) -> Tier:
    """The host's memory."""
    link = gpu.pcie_bytes_per_s
    return Tier("cpu", int(capacity_bytes), link * _LOAD_SHARE, _HOST_LATENCY_S, chunk_tokens, link * _STORE_SHARE)


def disk_tier(capacity_bytes: float, chunk_tokens: int) -> Tier:
    """A local drive."""
    return Tier("disk", int(capacity_bytes), _DISK_BYTES_PER_S, _DISK_LATENCY_S, chunk_tokens)


def connector_tiers(
    transfer: dict[str, Any] | None, gpu: HardwareKind, block_size: int, workers: int, env: Mapping[str, str]
) -> tuple[Tier, ...]:
    """What vLLM's kv_transfer_config adds.

    Args:
        transfer: the option's JSON object.
        workers: GPUs; in-process LMCache has a store of its configured size for each.
        env: LMCACHE_CONFIG_FILE and LMCACHE_… as LMCache reads them.

    Raises:
        UsageError: a connector that cannot be emulated.
        StartError: LMCache's file cannot be read.
    """
    if transfer is None:
        return ()
    connector = transfer.get("kv_connector")
    extra = transfer.get("kv_connector_extra_config") or {}
    if connector == "OffloadingConnector" and "cpu_bytes_to_use" in extra:
        tiers = [replace(host_tier(gpu, extra["cpu_bytes_to_use"], block_size), owned=True)]
        if extra.get("secondary_tiers"):
            tiers.append(disk_tier(1e12, block_size))
        return tuple(tiers)
    if connector in _LMCACHE:
        return lmcache_tiers(gpu, workers, env, server=_LMCACHE[connector])
    raise UsageError(
        f"vllm: kv_connector {connector!r} cannot be emulated. These can: OffloadingConnector (with cpu_bytes_to_use), "
        f"{', '.join(_LMCACHE)}. A prefill/decode split is the emulator's own option --split."
    )


def lmcache_tiers(gpu: HardwareKind, workers: int, env: Mapping[str, str], *, server: bool) -> tuple[Tier, ...]:
    """LMCache's tiers. Environment variables override the configuration file, and the file overrides the defaults.

    Args:
        workers: number of GPUs. Each GPU has a store of its own if LMCache runs in the engine's processes.
        server: whether one LMCache server serves all GPUs. The server evicts a share of its chunks at a watermark.

    Raises:
        StartError: the file cannot be read, or a size is no number.
    """
    values = _LMCACHE_DEFAULTS | _file_values(env.get("LMCACHE_CONFIG_FILE"))
    values |= {name: env[f"LMCACHE_{name.upper()}"] for name in values if f"LMCACHE_{name.upper()}" in env}
    try:
        chunk = int(values["chunk_size"])
        stores = 1 if server else workers
        host_bytes = float(values["max_local_cpu_size"]) * _GIB * stores
        disk_bytes = float(values["max_local_disk_size"]) * _GIB * stores
    except ValueError as error:
        raise StartError(f"LMCache's configuration: {error}") from None
    tiers = []
    if values["local_cpu"].lower() in ("true", "1") and host_bytes > 0:
        host = host_tier(gpu, host_bytes, chunk)
        tiers.append(replace(host, watermark=_WATERMARK, evicted_share=_EVICTED_SHARE) if server else host)
    if values["local_disk"].lower() not in ("", "null", "none", "~") and disk_bytes > 0:
        tiers.append(disk_tier(disk_bytes, chunk))
    return tuple(replace(tier, server=server) for tier in tiers)


def _file_values(path: str | None) -> dict[str, str]:
    """The known keys of LMCache's flat YAML file. Unknown keys are ignored, because LMCache only warns of them."""
    if path is None:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise StartError(f"LMCACHE_CONFIG_FILE: {error}") from None
    pairs = [line.partition("#")[0].partition(":") for line in lines if not line.startswith((" ", "-", "#"))]
    return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs if key.strip() in _LMCACHE_DEFAULTS}
