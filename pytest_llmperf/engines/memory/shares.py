"""How several servers take the memory of one GPU: at the same time, or in turn. Each gets a KV cache of a stated size.

An engine sizes its KV cache by the memory that it finds free, so two servers that start at the same time would each
measure the other. With an absolute size each server takes that size, whatever its siblings do. Where the memory is too
small for all servers, one server is awake at a time and the others keep their weights in host memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.memory.measured import GIB, MeasuredMemory
from pytest_llmperf.engines.models import SHAPES
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.model.engine import EngineSpec, Flag
from pytest_llmperf.model.ranks import TENSOR, size_of
from pytest_llmperf.shapes import ModelShape

#: Of a GPU's memory that all servers together may take.
USED_SHARE = 0.92
#: A server that answers holds more than one that has just started, by no more than this.
AFTER_START_BYTES = GIB
#: What a server needs beside weights and KV cache, before it was ever measured: context, activations, CUDA graphs. Two
#: vLLM 0.26.0 servers with the Llama-3.1-8B shape took 3.1 GiB each on an H100 while they answered.
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
NOT_MEASURED: Mapping[EngineSpec, MeasuredMemory] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Shares:
    """Specs that live together, with the flags that this takes.

    Args:
        specs: as they are started.
        text: sizes and their sources, for people; "" where memory does not matter.
    """

    specs: tuple[EngineSpec, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Need:
    """Memory of a server on each GPU.

    Args:
        weight_bytes: weights alone.
        beside_kv_bytes: everything but the KV cache.
        shape: dimensions of the model; None if unknown.
        measured: whether an earlier start was measured.
    """

    weight_bytes: int
    beside_kv_bytes: int
    shape: ModelShape | None
    measured: bool


def memory_shares(
    specs: Sequence[EngineSpec], memory_bytes: int | None, measured: Mapping[EngineSpec, MeasuredMemory] = NOT_MEASURED
) -> Shares | str:
    """The specs with a KV cache of a stated size each, or the reason why they cannot live on one GPU together.

    Args:
        specs: as they would be started alone.
        memory_bytes: of each GPU that they take; None if nobody knows.
        measured: what earlier starts of these specs held.
    """
    if memory_bytes is None:
        return "the size of the GPU's memory is not known"
    needs = _needs_or_reason(specs, measured)
    if isinstance(needs, str):
        return needs
    fixed_bytes = sum(need.beside_kv_bytes for need in needs)
    kv_bytes = int((USED_SHARE * memory_bytes - fixed_bytes) / len(specs)) // GIB * GIB
    if kv_bytes < LEAST_KV_BYTES:
        return (f"{len(specs)} servers need {fixed_bytes / GIB:.0f} GiB beside their KV caches, and the GPU has "
                f"{memory_bytes / GIB:.0f} GiB ({_text(needs)})")
    return _sized(specs, needs, kv_bytes, int(90 / len(specs)) / 100)


def sleeping_specs(
    specs: Sequence[EngineSpec], memory_bytes: int | None, host_bytes: int | None,
    measured: Mapping[EngineSpec, MeasuredMemory] = NOT_MEASURED,
) -> Shares | str:
    """The specs as servers of which one is awake at a time, or the reason why they cannot take turns.

    Args:
        specs, memory_bytes, measured: as in `memory_shares`.
        host_bytes: free memory of the host; None if nobody knows.
    """
    if memory_bytes is None or host_bytes is None:
        return f"the size of the {'host' if memory_bytes else 'GPU'}'s memory is not known"
    needs = _needs_or_reason(specs, measured)
    if isinstance(needs, str):
        return needs
    ranks = [size_of(flags_of(spec), TENSOR) for spec in specs]
    weight_bytes = sum(need.weight_bytes * count for need, count in zip(needs, ranks, strict=True))
    asleep_host_bytes = ASLEEP_HOST_FACTOR * weight_bytes
    if asleep_host_bytes > host_bytes:
        return (f"{len(specs)} sleeping servers need {asleep_host_bytes / GIB:.0f} GiB of host memory, and "
                f"{host_bytes / GIB:.0f} GiB are free")
    awake_bytes = USED_SHARE * memory_bytes - (len(specs) - 1) * ASLEEP_BYTES
    kv_bytes = int(awake_bytes - max(need.beside_kv_bytes for need in needs)) // GIB * GIB
    if kv_bytes < LEAST_KV_BYTES:
        return (f"a server and {len(specs) - 1} sleeping ones leave no {LEAST_KV_BYTES / GIB:.0f} GiB for the KV cache "
                f"on a GPU of {memory_bytes / GIB:.0f} GiB")
    shares = _sized(specs, needs, kv_bytes, int(100 * awake_bytes / memory_bytes) / 100)
    return replace(shares, specs=tuple(map(with_sleep_flags, shares.specs)))


def _sized(specs: Sequence[EngineSpec], needs: Sequence[_Need], kv_bytes: int, share: float) -> Shares:
    sized = (spec.with_flags(**(_share_flags(spec, need.shape, kv_bytes, share) or {}))
             for spec, need in zip(specs, needs, strict=True))
    return Shares(tuple(sized), f"KV caches of {kv_bytes // GIB} GiB, and beside each {_text(needs)}")


def _text(needs: Sequence[_Need]) -> str:
    return ", ".join(f"{need.beside_kv_bytes / GIB:.1f} GiB ({'measured' if need.measured else 'estimated'})"
                     for need in needs)


def with_sleep_flags(spec: EngineSpec) -> EngineSpec:
    """The spec of a server that can sleep."""
    return spec.with_flags(**adapter_of(spec.engine).sleep_flags)


def _needs_or_reason(
    specs: Sequence[EngineSpec], measured: Mapping[EngineSpec, MeasuredMemory]
) -> list[_Need] | str:
    """What each server takes, or why these servers cannot live on one GPU."""
    needs: list[_Need] = []
    for spec in specs:
        need = _need_or_reason(spec, measured.get(spec))
        if isinstance(need, str):
            return f"{spec} {need}"
        needs.append(need)
    return needs


def _need_or_reason(spec: EngineSpec, memory: MeasuredMemory | None) -> _Need | str:
    """What this server takes, or why it cannot live with others, as the end of a sentence."""
    flags = flags_of(spec)
    if spec.lmcache is not None:
        return "has an LMCache server"
    if about := sorted(ABOUT_MEMORY & set(flags)):
        return f"sets {about[0]} itself"
    changing = sorted(SHAPE_CHANGING & set(flags))
    shape = None if changing else SHAPES.get(spec.model)
    if shape is None and (memory is None or _share_flags(spec, None, LEAST_KV_BYTES, 1.0) is None):
        return f"changes its model by {changing[0]}" if changing else "has a model of unknown size"
    if _share_flags(spec, shape, LEAST_KV_BYTES, 1.0) is None:
        return "has no flag for the size of its KV cache"
    if memory is None:
        assert shape is not None
        weight_bytes = _weight_bytes(spec, shape)
        return _Need(weight_bytes, weight_bytes + BESIDE_BYTES, shape, measured=False)
    estimate_bytes = memory.beside_kv_bytes if shape is None else _weight_bytes(spec, shape)
    weight_bytes = estimate_bytes if memory.weights_bytes is None else memory.weights_bytes
    return _Need(weight_bytes, memory.beside_kv_bytes + AFTER_START_BYTES, shape, measured=True)


def _share_flags(spec: EngineSpec, shape: ModelShape | None, kv_bytes: int, share: float) -> Mapping[str, Flag] | None:
    return adapter_of(spec.engine).share_flags(spec, shape, kv_bytes, share)


def _weight_bytes(spec: EngineSpec, shape: ModelShape) -> int:
    """Bytes of weights on each GPU, a draft model's included; quantised weights take less."""
    draft = SHAPES.get(adapter_of(spec.engine).draft_model(spec) or "")
    return (0 if draft is None else draft.weight_bytes()) + shape.weight_bytes() // size_of(flags_of(spec), TENSOR)
