"""vLLM's command line: `serve MODEL --flag …`, with the defaults that 0.26 to 0.32 resolve."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_llmperf.emulator.config import Link, Tier
from pytest_llmperf.emulator.flags.launch import Launch, Machine, served_shape
from pytest_llmperf.emulator.flags.parser import EngineParser
from pytest_llmperf.emulator.flags.speculation import speculation
from pytest_llmperf.emulator.flags.tables import VLLM
from pytest_llmperf.emulator.flags.tiers import connector_tiers, host_tier
from pytest_llmperf.emulator.flags.vllm_config import speculative_config, vllm_config
from pytest_llmperf.emulator.quantities import UsageError
from pytest_llmperf.kinds.rows import HardwareKind

_GIB = 2**30


def vllm_launch(
    argv: Sequence[str],
    machine: Machine,
    env: Mapping[str, str],
    *,
    split: Link | None = None,
    acceptance: tuple[float, ...] | None = None,
) -> Launch:
    """Resolve vLLM's arguments as vLLM would on this machine.

    Args:
        argv: with or without a leading "serve".
        machine: GPUs.
        env: environment variables. Only LMCache's variables are read.
        split: link between prefill GPUs and decode GPUs; None if each GPU does prefill and decode.
        acceptance: acceptance probability per draft position, instead of the default of the speculation method.

    Raises:
        UsageError: the emulator cannot emulate an argument.
        StartError: vLLM itself would refuse to start, for instance because the model does not fit.
    """
    namespace = EngineParser(VLLM).read(argv)
    machine.check(namespace.tensor_parallel_size, namespace.data_parallel_size, 2 if split else 1)
    model = namespace.model_tag or namespace.model
    if model is None:
        raise UsageError("vllm: which model? Write `serve MODEL …`, or --model MODEL.")
    shape = served_shape(model, namespace.quantization)
    settings = speculative_config(namespace)
    drafts = speculation(settings, shape, model, acceptance) if settings else None
    config = vllm_config(
        namespace, shape, machine.gpu, drafts=drafts, tiers=_tiers(namespace, machine.gpu, env), split=split
    )
    return Launch(
        config=config,
        host=namespace.host,
        port=namespace.port,
        model=model,
        served_names=tuple(namespace.served_model_name or [model]),
        cached_details=namespace.enable_prompt_tokens_details,
        usage_always=namespace.enable_force_include_usage,
        tokenizer=not namespace.skip_tokenizer_init,
        metrics=not namespace.disable_log_stats,
        utilization=namespace.gpu_memory_utilization,
        facts={
            "dtype": "torch.float16" if namespace.dtype in ("float16", "half") else "torch.bfloat16",
            "enforce_eager": namespace.enforce_eager,
            "quantization": f"auto_{shape.quantization.method}" if shape.quantization else namespace.quantization,
            "cache_dtype": namespace.kv_cache_dtype,
            "speculative_config": namespace.speculative_config,
        },
    )


def _tiers(options: argparse.Namespace, gpu: HardwareKind, env: Mapping[str, str]) -> tuple[Tier, ...]:
    """Stores below the GPU, from whichever of the flags that name one."""
    workers = options.tensor_parallel_size * options.data_parallel_size
    if options.kv_offloading_size:
        if options.kv_offloading_backend == "lmcache":  # vLLM passes the size on to nobody
            return connector_tiers({"kv_connector": "LMCacheMPConnector"}, gpu, options.block_size, workers, env)
        return (replace(host_tier(gpu, options.kv_offloading_size * _GIB, options.block_size), owned=True),)
    return connector_tiers(options.kv_transfer_config, gpu, options.block_size, workers, env)
