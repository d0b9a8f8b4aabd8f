"""How several servers share the memory of one GPU: each gets a KV cache of a stated size.

An engine sizes its KV cache by the memory that it finds free, so two servers that start at the same time would each
measure the other. With an absolute size each server takes that size, whatever its siblings do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_llmperf.engines.models import SHAPES
from pytest_llmperf.engines.models.shape import Shape
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.model.engine import EngineSpec, Flag
from pytest_llmperf.model.ranks import TENSOR, size_of

GIB = 2**30
#: Of a GPU's memory that all servers together may take.
USED_SHARE = 0.92
#: What a server needs beside weights and KV cache: context, activations, CUDA graphs. Two vLLM 0.26.0 servers with
#: the Llama-3.1-8B shape took 3.1 GiB each on an H100 while they answered.
BESIDE_BYTES = 4 * GIB
#: A smaller KV cache would make preemptions part of most loads.
LEAST_KV_BYTES = 6 * GIB
#: Flags by which a test says how much memory the engine gets, or what stands in memory beside weights and KV cache.
ABOUT_MEMORY = frozenset({
    "gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override", "cpu_offload_gb", "swap_space",
    "kv_offloading_size", "kv_offloading_backend", "kv_transfer_config", "mem_fraction_static", "max_total_tokens",
    "enable_hierarchical_cache", "hicache_ratio", "hicache_size",
})
SHAPE_CHANGING = frozenset({"hf_overrides", "json_model_override_args"})


def memory_shares(specs: Sequence[EngineSpec], memory_bytes: int | None) -> list[EngineSpec] | str:
    """The specs with a KV cache of a stated size each, or the reason why they cannot live on one GPU together.

    Args:
        specs: as they would be started alone.
        memory_bytes: of each GPU that they take; None where nobody knows.
    """
    if memory_bytes is None:
        return "the size of the GPU's memory is not known"
    shapes: dict[EngineSpec, Shape] = {}
    for spec in specs:
        shape = _shape_or_reason(spec)
        if isinstance(shape, str):
            return f"{spec} {shape}"
        shapes[spec] = shape
    fixed_bytes = sum(_weight_bytes(spec, shapes[spec]) + BESIDE_BYTES for spec in specs)
    kv_bytes = int((USED_SHARE * memory_bytes - fixed_bytes) / len(specs)) // GIB * GIB
    if kv_bytes < LEAST_KV_BYTES:
        return (f"{len(specs)} servers need {fixed_bytes / GIB:.0f} GiB beside their KV caches, and the GPU has "
                f"{memory_bytes / GIB:.0f} GiB")
    share = int(90 / len(specs)) / 100
    return [spec.with_flags(**SHARE_FLAGS[spec.engine](spec, shapes[spec], kv_bytes, share)) for spec in specs]


def _shape_or_reason(spec: EngineSpec) -> Shape | str:
    """The model's dimensions, or why this server cannot share a GPU, as the end of a sentence."""
    flags = flags_of(spec)
    if spec.engine not in SHARE_FLAGS:
        return "has no flag for the size of its KV cache"
    if spec.lmcache is not None:
        return "has an LMCache server"
    if about := sorted(ABOUT_MEMORY & set(flags)):
        return f"sets {about[0]} itself"
    if about := sorted(SHAPE_CHANGING & set(flags)):
        return f"changes its model by {about[0]}"
    shape = SHAPES.get(spec.model)
    return "has a model of unknown size" if shape is None else shape


def _weight_bytes(spec: EngineSpec, shape: Shape) -> int:
    """Bytes of weights on each GPU, a draft model's included; quantised weights take less."""
    flags = flags_of(spec)
    drafts = flags.get("speculative_config")
    names = [drafts.get("model") if isinstance(drafts, Mapping) else None,
             flags.get("speculative_draft_model_path")]
    draft_bytes = sum(SHAPES[name].weight_bytes for name in names if isinstance(name, str) and name in SHAPES)
    return draft_bytes + shape.weight_bytes // size_of(flags, TENSOR)


def _vllm_flags(_spec: EngineSpec, _shape: Shape, kv_bytes: int, share: float) -> Mapping[str, Flag]:
    """At its start vLLM refuses a GPU on which less than `gpu_memory_utilization` is free."""
    return {"gpu_memory_utilization": share, "kv_cache_memory_bytes": kv_bytes}


def _sglang_flags(spec: EngineSpec, shape: Shape, kv_bytes: int, _share: float) -> Mapping[str, Flag]:
    """Tensor parallelism splits the KV heads over the GPUs. Each GPU keeps at least one head."""
    heads_on_each_gpu = max(1, shape.kv_heads // size_of(flags_of(spec), TENSOR))
    return {"max_total_tokens": kv_bytes * shape.kv_heads // (shape.kv_bytes_per_token * heads_on_each_gpu)}


#: Engine → from the spec, its model's dimensions, the bytes of the KV cache on each GPU and the share of the GPU to the
#: flags that say so.
SHARE_FLAGS: Mapping[str, Callable[[EngineSpec, Shape, int, float], Mapping[str, Flag]]] = {
    "vllm": _vllm_flags, "sglang": _sglang_flags,
}
