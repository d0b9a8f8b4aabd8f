"""Whether one sequence of the longest allowed length fits into the KV cache, by arithmetic before a start."""

from __future__ import annotations

from pytest_llmperf.engines.memory.measured import GIB
from pytest_llmperf.engines.memory.shares import SHAPE_CHANGING
from pytest_llmperf.engines.models import SHAPES
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.engines.vllm.adapter import CPU_ENV
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.ranks import DATA, PIPELINE, TENSOR, size_of
from pytest_llmperf.shapes import ModelShape

BLOCK_TOKENS, CPU_BLOCK_TOKENS = 16, 128  # vLLM's defaults
CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"  # GiB
#: Flags that change the size of weights or of a token's keys and values, or that move them out of the GPU's memory.
UNKNOWN_SIZE = SHAPE_CHANGING | {"kv_cache_dtype", "quantization", "cpu_offload_gb", "kv_transfer_config", "dtype"}


def predicted_refusal(spec: EngineSpec, memory_bytes: int | None) -> str | None:
    """Why vLLM should refuse this length of a sequence; None if the length fits or the sizes are unknown.

    The available memory is an upper bound: activations, CUDA graphs and the block that vLLM keeps are left out.

    Args:
        spec: of the engine, with its hardware kind.
        memory_bytes: of each GPU; None if unknown, and on a CPU.
    """
    flags, shape = flags_of(spec), SHAPES.get(spec.model)
    length = flags.get("max_model_len")
    spread = size_of(flags, PIPELINE) * size_of(flags, DATA) > 1
    if spec.engine != "vllm" or shape is None or not isinstance(length, int) or spread or UNKNOWN_SIZE & flags.keys():
        return None
    ranks = size_of(flags, TENSOR)
    needed_bytes = length * shape.kv_bytes_per_token() / min(ranks, shape.kv_heads)
    available_bytes = _most_cache_bytes(spec, shape, ranks, memory_bytes)
    if available_bytes is None or needed_bytes <= available_bytes:
        return None
    return (f"one sequence of {length:,} tokens needs {needed_bytes / GIB:.3g} GiB of KV cache, and "
            f"{available_bytes / GIB:.3g} GiB are available at most")


def _most_cache_bytes(spec: EngineSpec, shape: ModelShape, ranks: int, memory_bytes: int | None) -> float | None:
    """Upper bound of the KV cache on each rank; None if unknown."""
    flags, env = flags_of(spec), CPU_ENV | dict(spec.env)
    if isinstance(blocks := flags.get("num_gpu_blocks_override"), int):
        size = flags.get("block_size", CPU_BLOCK_TOKENS if spec.kind == "cpu" else BLOCK_TOKENS)
        tokens = blocks * size if isinstance(size, int) else None
        return None if tokens is None else tokens * shape.kv_bytes_per_token() / min(ranks, shape.kv_heads)
    if spec.kind == "cpu":  # the variable replaces kv_cache_memory_bytes
        return float(env[CPU_CACHE]) * GIB if env[CPU_CACHE].isdigit() else None
    if isinstance(stated := flags.get("kv_cache_memory_bytes"), int):
        return stated
    share = flags.get("gpu_memory_utilization", 1.0)
    if memory_bytes is None or not isinstance(share, int | float):
        return None
    return max(0.0, share * memory_bytes - shape.weight_bytes() / ranks)
