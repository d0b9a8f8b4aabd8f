"""Settings with which engines use LMCache: connectors, flags, and the environment of LMCache in an engine process."""

from __future__ import annotations

from pytest_llmperf.config.settings import expanded
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.lmcache import LMCache

CONNECTORS = {True: "LMCacheConnectorV1", False: "LMCacheMPConnector"}  # vLLM's, by `in_process`
DISK_GB = 64


def in_process_settings(lmcache: LMCache) -> dict[str, str]:
    """LMCache's environment variables. An LMCache server reads its command line instead and ignores these variables."""
    env = {
        "LMCACHE_CHUNK_SIZE": str(lmcache.chunk_size),
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": f"{lmcache.l1_size_gb:g}",
        "LMCACHE_CACHE_POLICY": lmcache.eviction_policy,
    }
    if lmcache.l2_path is not None:
        env |= {"LMCACHE_LOCAL_DISK": expanded(lmcache.l2_path), "LMCACHE_MAX_LOCAL_DISK_SIZE": str(DISK_GB)}
    return env


def is_attached(spec: EngineSpec) -> bool:
    """Whether the engine shall use LMCache, by `with_lmcache` or by its own flags."""
    flags = flags_of(spec)
    by_hand = flags.get("enable_lmcache") is True or flags.get("kv_offloading_backend") == "lmcache"
    return spec.lmcache is not None or by_hand or "LMCache" in str(flags.get("kv_transfer_config"))
