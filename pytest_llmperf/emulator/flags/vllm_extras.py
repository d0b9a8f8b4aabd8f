"""What vLLM's flags say of speculative decoding and of stores below the GPU."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_llmperf.emulator.config import Speculation, Tier
from pytest_llmperf.emulator.cost.shape import ModelShape
from pytest_llmperf.emulator.flags.parser import StartError
from pytest_llmperf.emulator.flags.speculation import WITHOUT_ASYNC, speculation
from pytest_llmperf.emulator.flags.tiers import connector_tiers, host_tier
from pytest_llmperf.kinds import HardwareKind

_GIB = 2**30


def _speculative_config(options: argparse.Namespace) -> dict[str, Any] | None:
    config = dict(options.speculative_config or {})
    short = {"method": options.spec_method, "model": options.spec_model, "num_speculative_tokens": options.spec_tokens}
    config |= {name: value for name, value in short.items() if value is not None}
    return config or None


def vllm_speculation(
    options: argparse.Namespace, shape: ModelShape, model: str, acceptance: tuple[float, ...] | None
) -> Speculation | None:
    """Speculation from the flags, with the given acceptance rates unless the flags set rates; None without
    speculation."""
    config = _speculative_config(options)
    if config is None:
        return None
    drafts = speculation(config, shape, model)
    if acceptance is None or "rejection_sample_method" in config:
        return drafts
    rates = (acceptance + (acceptance[-1],) * drafts.draft_tokens)[: drafts.draft_tokens]
    return replace(drafts, acceptance=rates)


def asynchronous(options: argparse.Namespace) -> bool:
    """Whether the next step is scheduled while the current step computes. Drafts from the host prevent this."""
    config = _speculative_config(options) or {}
    unable = config.get("method", "draft_model" if "model" in config else None) in WITHOUT_ASYNC
    if options.async_scheduling and unable:
        raise StartError(f"async scheduling is not supported with {config.get('method')} speculative decoding.")
    return not unable if options.async_scheduling is None else bool(options.async_scheduling)


def vllm_tiers(options: argparse.Namespace, gpu: HardwareKind, env: Mapping[str, str]) -> tuple[Tier, ...]:
    """Stores below the GPU, from whichever of the flags that name one."""
    workers = options.tensor_parallel_size * options.data_parallel_size
    if options.kv_offloading_size:
        if options.kv_offloading_backend == "lmcache":  # vLLM passes the size on to nobody
            return connector_tiers({"kv_connector": "LMCacheMPConnector"}, gpu, options.block_size, workers, env)
        return (replace(host_tier(gpu, options.kv_offloading_size * _GIB, options.block_size), owned=True),)
    return connector_tiers(options.kv_transfer_config, gpu, options.block_size, workers, env)
