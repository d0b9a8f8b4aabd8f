"""The GPUs of the servers of a session, with their memory, price and trace."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.deployment.spec import PLACES
from pytest_llmperf.engines.memory.measured import GIB, MemoryRecords
from pytest_llmperf.engines.memory.shares import SHAPE_CHANGING, Shares, memory_shares, sleeping_specs, with_sleep_flags
from pytest_llmperf.engines.models import SHAPES
from pytest_llmperf.engines.server import Server
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.engines.vllm.adapter import CPU_ENV
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.metrics.energy import GPU_HOUR_PRICE, GPUS
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.ranks import DATA, PIPELINE, TENSOR, size_of
from pytest_llmperf.shapes import ModelShape
from pytest_llmperf.telemetry.accelerators import Accelerators, TraceOf
from pytest_llmperf.telemetry.cpu import free_host_memory_bytes
from pytest_llmperf.telemetry.hardware import VARIABLE, Gpu, Hardware, showing_only, words_of_gpus

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


#: Why a deployment runs alone.
ALONE = "the replicas of a deployment take their GPUs alone"


def _emulated_shares(specs: Sequence[EngineSpec], memory_bytes: int | None, *, in_turn: bool) -> Shares | str:
    """As on the emulated GPU, whose host has memory for every sleeping server. Emulated servers divide nothing."""
    if len({spec.gpus for spec in specs}) > 1:
        return "they take different GPUs"
    shares = sleeping_specs(specs, memory_bytes, sys.maxsize) if in_turn else memory_shares(specs, memory_bytes)
    if isinstance(shares, str):
        return shares
    return Shares(tuple(map(with_sleep_flags, specs) if in_turn else specs), shares.text)


def _emulated_memory_bytes(spec: EngineSpec) -> int | None:
    return None if spec.kind is None or spec.kind not in GPU_KINDS else GPU_KINDS[spec.kind].nvml_memory_bytes


class ServerGpus:
    """The GPUs of the servers of a session.

    Args:
        settings: of the session.
        hardware: of this machine, or the emulated hardware.
        accelerators: watches the GPUs.
        on_free: called with a GPU while it is free, before each start of a server.
        compares: whether comparisons with a reference build may use several GPU sets.

    Attributes:
        memories: what servers held after earlier starts; None in virtual time.
    """

    def __init__(self, settings: Settings, hardware: Hardware, accelerators: Accelerators,
                 on_free: Callable[[Gpu], None], *, compares: bool = False) -> None:
        self._settings, self._hardware, self._accelerators = settings, hardware, accelerators
        self._on_free = on_free
        self.memories: MemoryRecords | None = None
        #: GPUs beside the first one that other processes used when the session began.
        self._used = {gpu for gpu in hardware.gpus[1:] if compares and accelerators.in_use((gpu,))}

    def of(self, spec: EngineSpec) -> tuple[Gpu, ...]:
        """The GPUs of a server, or of all replicas of a deployment."""
        return self._accelerators.of_server(flags_of(spec), dict(spec.env), spec.kind, spec.gpus, spec.gpu_set)

    def sets(self, spec: EngineSpec) -> tuple[int, ...]:
        """Numbers of the GPU sets on which servers of this spec can run at the same time: set 0, and each other set if
        nobody used its GPUs when the session began. A spec that names its GPUs, and a spec for a CPU, has set 0 alone.

        An emulated host has other GPU sets only if CUDA_VISIBLE_DEVICES names their GPUs.
        """
        here, count = self._hardware.gpus, spec.gpus
        if self._hardware.emulated:
            here = here[: len(words_of_gpus(here, os.environ)) if VARIABLE in os.environ else count]
        if spec.kind == "cpu" or VARIABLE in dict(spec.env) or flags_of(spec).keys() & set(PLACES):
            return (0,)
        sets = [here[first : first + count] for first in range(0, len(here) - count + 1, count)]
        return (0, *(number for number, gpus in enumerate(sets) if number and not self._used.intersection(gpus)))

    def shown(self, spec: EngineSpec) -> dict[str, str]:
        """The variables that show a server the GPUs of its set, if these are not the first GPUs."""
        first = spec.gpu_set * spec.gpus
        words = words_of_gpus(self._hardware.gpus, os.environ)[first : first + spec.gpus]
        return showing_only(words, os.environ) if spec.gpu_set else {}

    def hardware_of(self, spec: EngineSpec) -> Hardware:
        """The hardware that a server uses: a server on one of eight GPUs has one GPU."""
        taken = self.of(spec)
        return replace(self._hardware, gpus=taken) if taken else self._hardware

    def costs(self, spec: EngineSpec) -> dict[str, float]:
        """The number of GPUs of a server and the price of a GPU hour, as counters of a run; of an endpoint neither."""
        if spec.is_endpoint:
            return {}
        gpus = spec.gpus if self._hardware.emulated else len(self.of(spec))
        if not gpus:
            return {}
        price = self._settings.gpu_price
        return {GPUS: gpus} if price is None else {GPUS: gpus, GPU_HOUR_PRICE: price.amount}

    def watched(self, server: Server, pids: Callable[[], tuple[int, ...]]) -> AbstractContextManager[TraceOf]:
        """Look at the GPUs of a server while a block runs; at none for an endpoint, whose machine is not known."""
        gpus = () if server.spec.is_endpoint else self.of(server.spec)
        return self._accelerators.watched(gpus, pids)

    def share(self, specs: Sequence[EngineSpec], in_turn: bool) -> Shares | str:
        """Each spec with its share of the memory of its GPU set. A server alone on a set takes all memory."""
        sets = sorted({spec.gpu_set for spec in specs})
        if len(sets) == 1:
            return self._share_of_set(specs, in_turn=in_turn)
        if in_turn:
            return "servers on several GPU sets stay awake"
        planned, text = dict[EngineSpec, EngineSpec](), ""
        for own in ([spec for spec in specs if spec.gpu_set == number] for number in sets):
            shares = self._share_of_set(own, in_turn=False) if len(own) > 1 else Shares(tuple(own))
            if isinstance(shares, str):
                return shares
            planned |= zip(own, shares.specs, strict=True)
            text = shares.text
        return Shares(tuple(planned[spec] for spec in specs), text)

    def _share_of_set(self, specs: Sequence[EngineSpec], *, in_turn: bool) -> Shares | str:
        """A server on a CPU takes little memory; on a GPU each gets a share of it, or a turn."""
        wanted, several = self._settings.resident_servers, any(spec.servers > 1 for spec in specs)
        if several or wanted not in ("auto", "sleep" if in_turn else "share"):
            return ALONE if several else f'resident_servers is "{wanted}"'
        if self._hardware.emulated:
            return _emulated_shares(specs, _emulated_memory_bytes(specs[0]), in_turn=in_turn)
        taken = [self.of(spec) for spec in specs]
        if not any(taken):
            return "a CPU has no memory of its own to release" if in_turn else Shares(tuple(specs))
        if any(gpus != taken[0] for gpus in taken):
            return "they take different GPUs"
        memory_bytes = _smallest_bytes(taken[0])
        measured = {} if self.memories is None else self.memories.of(specs, taken[0][0].name)
        if in_turn:
            return sleeping_specs(specs, memory_bytes, free_host_memory_bytes(), measured)
        return memory_shares(specs, memory_bytes, measured)

    def measure_memory(self, spec: EngineSpec, server: Server) -> None:
        """Keep what a server holds on its GPUs right after its start, for the plans of later sessions."""
        gpus = self.of(server.spec)
        if gpus and self.memories is not None and spec.servers == 1:
            held_bytes = self._accelerators.held_bytes(gpus, server.unit.pids(), alone=not server.siblings)
            self.memories.add(spec, gpus[0].name, server, held_bytes)

    def wait_free(self, spec: EngineSpec, stay: int) -> None:
        """Wait until the GPUs of a server are free."""
        gpus = self.of(spec)
        self._accelerators.wait_free(gpus, stay)
        if gpus:
            self._on_free(gpus[0])

    def predicted_refusal(self, spec: EngineSpec) -> str | None:
        """Why this engine should refuse its longest sequence, by arithmetic; None if nothing speaks against a start."""
        emulated = self._hardware.emulated
        memory_bytes = _emulated_memory_bytes(spec) if emulated else _smallest_bytes(self.of(spec))
        return predicted_refusal(spec, memory_bytes)


def _smallest_bytes(gpus: Sequence[Gpu]) -> int | None:
    """The memory of the smallest GPU; None if the memory of a GPU is unknown."""
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
    return min(sizes) if sizes and len(sizes) == len(gpus) else None
