"""How several servers take the memory of one GPU: at the same time, or in turn. Each gets a KV cache of a stated size.

An engine sizes its KV cache by the memory that it finds free, so two servers that start at the same time would each
measure the other. With an absolute size each server takes that size, whatever its siblings do. Where the memory is too
small for all servers, one server is awake at a time and the others keep their weights in host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_llmperf.engines.adapters import adapter_of
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
#: What a sleeping server keeps on the GPU: context, CUDA graphs and what its allocator does not release.
ASLEEP_BYTES = 4 * GIB
#: Host memory of a sleeping server per byte of weights, because pinned memory is taken in powers of two. A vLLM 0.26.0
#: server with 15 GiB of weights took 33 GB.
ASLEEP_HOST_FACTOR = 2.1
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
    shapes = _shapes_or_reason(specs)
    if isinstance(shapes, str):
        return shapes
    fixed_bytes = sum(_weight_bytes(spec, shapes[spec]) + BESIDE_BYTES for spec in specs)
    kv_bytes = int((USED_SHARE * memory_bytes - fixed_bytes) / len(specs)) // GIB * GIB
    if kv_bytes < LEAST_KV_BYTES:
        return (f"{len(specs)} servers need {fixed_bytes / GIB:.0f} GiB beside their KV caches, and the GPU has "
                f"{memory_bytes / GIB:.0f} GiB")
    share = int(90 / len(specs)) / 100
    return [spec.with_flags(**SHARE_FLAGS[spec.engine](spec, shapes[spec], kv_bytes, share)) for spec in specs]


def sleeping_specs(
    specs: Sequence[EngineSpec], memory_bytes: int | None, host_bytes: int | None
) -> list[EngineSpec] | str:
    """The specs as servers of which one is awake at a time, or the reason why they cannot take turns.

    Args:
        specs: as they would be started alone.
        memory_bytes: of each GPU that they take; None where nobody knows.
        host_bytes: free memory of the host; None where nobody knows.
    """
    if memory_bytes is None or host_bytes is None:
        return f"the size of the {'host' if memory_bytes else 'GPU'}'s memory is not known"
    shapes = _shapes_or_reason(specs)
    if isinstance(shapes, str):
        return shapes
    weights = [_weight_bytes(spec, shapes[spec]) for spec in specs]
    ranks = [size_of(flags_of(spec), TENSOR) for spec in specs]
    asleep_host_bytes = ASLEEP_HOST_FACTOR * sum(size * count for size, count in zip(weights, ranks, strict=True))
    if asleep_host_bytes > host_bytes:
        return (f"{len(specs)} sleeping servers need {asleep_host_bytes / GIB:.0f} GiB of host memory, and "
                f"{host_bytes / GIB:.0f} GiB are free")
    awake_bytes = USED_SHARE * memory_bytes - (len(specs) - 1) * ASLEEP_BYTES
    kv_bytes = int(awake_bytes - max(weights) - BESIDE_BYTES) // GIB * GIB
    if kv_bytes < LEAST_KV_BYTES:
        return (f"a server and {len(specs) - 1} sleeping ones leave no {LEAST_KV_BYTES / GIB:.0f} GiB for the KV cache "
                f"on a GPU of {memory_bytes / GIB:.0f} GiB")
    share = int(100 * awake_bytes / memory_bytes) / 100
    sized = [spec.with_flags(**SHARE_FLAGS[spec.engine](spec, shapes[spec], kv_bytes, share)) for spec in specs]
    return [with_sleep_flags(spec) for spec in sized]


def with_sleep_flags(spec: EngineSpec) -> EngineSpec:
    """The spec of a server that can sleep."""
    return spec.with_flags(**adapter_of(spec.engine).sleep_flags)


def _shapes_or_reason(specs: Sequence[EngineSpec]) -> dict[EngineSpec, Shape] | str:
    """The dimensions of each model, or why these servers cannot live on one GPU."""
    shapes: dict[EngineSpec, Shape] = {}
    for spec in specs:
        shape = _shape_or_reason(spec)
        if isinstance(shape, str):
            return f"{spec} {shape}"
        shapes[spec] = shape
    return shapes


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
