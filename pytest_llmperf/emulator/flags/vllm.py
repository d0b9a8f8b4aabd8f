"""vLLM's command line: `serve MODEL --flag …`, with the defaults that 0.26 to 0.32 resolve, and the configuration that
vLLM derives from its flags and the GPU."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_llmperf.emulator.config import EngineConfig, Link, Speculation, Tier
from pytest_llmperf.emulator.cost.capacity import DoesNotFit, kv_blocks, kv_bytes_per_gpu
from pytest_llmperf.emulator.flags.launch import Launch, Machine, served_shape
from pytest_llmperf.emulator.flags.parser import EngineParser, StartError, whole
from pytest_llmperf.emulator.flags.speculation import WITHOUT_ASYNC, speculation
from pytest_llmperf.emulator.flags.tables import FP8_KV, VLLM
from pytest_llmperf.emulator.flags.tiers import connector_tiers, host_tier
from pytest_llmperf.emulator.quantities import UsageError
from pytest_llmperf.kinds.rows import HardwareKind
from pytest_llmperf.shapes import Dtype, ModelShape

_GIB = 2**30
_COMPILATION = frozenset({"mode", "cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size"})
_LARGEST_GRAPH = 512
_NO_COMPILATION = ("0", "O0")


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
    dummy = namespace.load_format == "dummy"
    drafts = speculation(settings, shape, model, acceptance, dummy=dummy) if settings else None
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


def vllm_config(
    options: argparse.Namespace,
    shape: ModelShape,
    gpu: HardwareKind,
    *,
    drafts: Speculation | None,
    tiers: tuple[Tier, ...],
    split: Link | None,
) -> EngineConfig:
    """The configuration that vLLM resolves.

    Raises:
        UsageError, StartError: see vllm_launch.
    """
    length = _max_model_len(options.max_model_len, shape)
    budget, sequences = _budget(options, gpu, length)
    weights: Dtype = "fp8" if options.quantization == "fp8" or shape.published == "fp8" else "bfloat16"
    kv: Dtype = "fp8" if options.kv_cache_dtype in FP8_KV["vllm"] else "bfloat16"
    graphs, largest = _graphs(options, budget, sequences, drafts)
    return EngineConfig(
        engine="vllm",
        shape=shape,
        gpu=gpu,
        max_model_len=length,
        max_num_batched_tokens=budget,
        max_num_seqs=sequences,
        block_size=options.block_size,
        num_blocks=_blocks(options, shape, gpu, (weights, kv), (length, budget, sequences if drafts else 0)),
        prefix_caching=options.enable_prefix_caching,
        chunked_prefill=options.enable_chunked_prefill,
        weights=weights,
        kv=kv,
        tensor_parallel=options.tensor_parallel_size,
        data_parallel=options.data_parallel_size,
        expert_parallel=options.enable_expert_parallel,
        cuda_graphs=graphs,
        max_graph_size=largest,
        async_scheduling=_asynchronous(options),
        speculation=drafts,
        tiers=tiers,
        transfer=split,
    )


def _max_model_len(requested: str | None, shape: ModelShape) -> int:
    if requested in (None, "auto", "-1"):
        return shape.max_positions
    try:
        length = whole(str(requested), least=1)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"vllm: --max-model-len: {error}.") from None
    if length > shape.max_positions:
        raise StartError(
            f"User-specified max_model_len ({length}) is greater than the derived max_model_len "
            f"(max_position_embeddings={shape.max_positions})."
        )
    return length


def _budget(options: argparse.Namespace, gpu: HardwareKind, length: int) -> tuple[int, int]:
    """Token budget of a step and most sequences, by vLLM's defaults for an API server."""
    gib = gpu.memory_bytes / _GIB
    tokens, most = (16384, 1024) if gib >= 160 else (8192, 1024) if gib >= 70 and gpu.name != "a100" else (2048, 256)
    twice = 2 if options.performance_mode == "throughput" else 1
    sequences = options.max_num_seqs or most * twice
    budget = options.max_num_batched_tokens
    if budget is None:
        budget = tokens * twice
        if not options.enable_chunked_prefill:
            budget = max(budget, length)
        budget = min(budget, sequences * length)
    if options.max_num_seqs is None:
        sequences = min(sequences, budget)
    if budget < sequences:
        raise StartError(
            f"max_num_batched_tokens ({budget}) must be greater than or equal to max_num_seqs ({sequences})."
        )
    if not options.enable_chunked_prefill and budget < length:
        raise StartError(
            f"max_num_batched_tokens ({budget}) is smaller than max_model_len ({length}). Please increase "
            "max_num_batched_tokens, decrease max_model_len, or enable chunked prefill."
        )
    return budget, sequences


def _blocks(
    options: argparse.Namespace, shape: ModelShape, gpu: HardwareKind, dtypes: tuple[Dtype, Dtype],
    limits: tuple[int, int, int],
) -> int:
    """KV blocks of a replica; `dtypes` of weights and KV, `limits`: longest sequence, token budget, and most sequences
    with drafts."""
    (weights, kv), (length, budget, drafting) = dtypes, limits
    tp, size = options.tensor_parallel_size, options.block_size
    block_bytes = kv_bytes_per_gpu(shape, kv, tp) * size
    if options.num_gpu_blocks_override is not None:
        blocks = int(options.num_gpu_blocks_override)
    elif options.kv_cache_memory_bytes is not None:
        blocks = int(options.kv_cache_memory_bytes // block_bytes)
    else:
        spread = tp * options.data_parallel_size if options.enable_expert_parallel and shape.moe else tp
        try:
            blocks = kv_blocks(
                shape, gpu, tp, weights, kv, size, options.gpu_memory_utilization, budget, weight_gpus=spread,
                drafting=drafting,
            )
        except DoesNotFit as error:
            raise StartError(
                "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
                f"the engine. ({error})"
            ) from None
    needed, usable = -(-length // size), blocks - 1  # vLLM keeps the first block for itself
    if usable < needed:
        raise StartError(
            f"To serve at least one request with the model's max seq len ({length}), "
            f"({needed * block_bytes / _GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache "
            f"memory ({usable * block_bytes / _GIB:.2f} GiB). Based on the available memory, the estimated maximum "
            f"model length is {usable * size}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` "
            "when initializing the engine."
        )
    return blocks


def _graphs(options: argparse.Namespace, budget: int, sequences: int, drafts: Speculation | None) -> tuple[bool, int]:
    """Whether decode steps replay graphs, and the largest one."""
    config = options.compilation_config
    if unknown := sorted(set(config) - _COMPILATION):
        raise UsageError(
            f"vllm: compilation_config {unknown[0]!r} cannot be emulated. These keys can: "
            f"{', '.join(sorted(_COMPILATION))}."
        )
    if options.enforce_eager or options.optimization_level in _NO_COMPILATION or config.get("cudagraph_mode") == "NONE":
        return False, 0
    if config.get("mode") == 0 and "cudagraph_mode" not in config:
        return False, 0
    if sizes := options.cudagraph_capture_sizes or config.get("cudagraph_capture_sizes"):
        return True, min(max(sizes), budget)
    per_sequence = drafts.draft_tokens + 1 if drafts else 1
    largest = options.max_cudagraph_capture_size or config.get("max_cudagraph_capture_size")
    return True, min(largest or min(sequences * per_sequence * 2, _LARGEST_GRAPH), budget)


def speculative_config(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of speculative decoding, short flags included; empty without."""
    config = dict(options.speculative_config or {})
    short = {"method": options.spec_method, "model": options.spec_model, "num_speculative_tokens": options.spec_tokens}
    return config | {name: value for name, value in short.items() if value is not None}


def _asynchronous(options: argparse.Namespace) -> bool:
    """Whether the next step is scheduled while the current step computes. Drafts from the host prevent this."""
    config = speculative_config(options)
    unable = config.get("method", "draft_model" if "model" in config else None) in WITHOUT_ASYNC
    if options.async_scheduling and unable:
        raise StartError(f"async scheduling is not supported with {config.get('method')} speculative decoding.")
    return not unable if options.async_scheduling is None else bool(options.async_scheduling)
