"""The resolved configuration of an emulated engine: all settings that the emulator's core needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pytest_llmperf.kinds.rows import HardwareKind
from pytest_llmperf.shapes import Dtype, ModelShape

Policy = Literal["fcfs", "lpm", "dfs-weight"]


@dataclass(frozen=True, slots=True)
class Lookup:
    """Drafts are what followed the last tokens earlier in the text.

    Args:
        least, most: number of last tokens that are searched for; a longer match is preferred.
        factor: a draft has at most this many tokens per matched token; None for no such limit.
    """

    least: int
    most: int
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class Speculation:
    """Draft and verify.

    Args:
        draft_tokens: proposed per step and sequence.
        acceptance: probability that the target accepts draft position i after it accepted all earlier positions.
        draft: shape of the draft model; None if drafting takes no GPU time (n-grams).
        of_target: the draft model reads the target's hidden states (EAGLE, MTP). Then vLLM computes the last cached
            block of a prompt again.
        lookup: how drafts are found in the text. Then an answer is taken to repeat itself as much as its prompt does,
            and `acceptance` holds for tokens that this would let the target accept. None: text plays no part.
    """

    draft_tokens: int
    acceptance: tuple[float, ...]
    draft: ModelShape | None = None
    of_target: bool = False
    lookup: Lookup | None = None


@dataclass(frozen=True, slots=True)
class Tier:
    """A KV cache tier below GPU memory, modelled on LMCache.

    Args:
        name: "cpu" or "disk".
        capacity_bytes: capacity for all GPUs together.
        bytes_per_s: rate of loads into the GPU.
        latency_s: fixed latency of a load. The latencies of several loads overlap.
        chunk_tokens: number of tokens that are stored and matched together.
        store_bytes_per_s: rate of stores out of the GPU; None for the rate of loads.
        watermark: share of the capacity at which eviction starts; 1 evicts only if the tier is full.
        evicted_share: share of the stored chunks that an eviction removes; 0 removes as few as needed.
        owned: whether the tier belongs to the engine. A reset of the prefix cache always empties SGLang's own tier, and
            vLLM's if the reset asks for that.
        server: whether the tier belongs to an LMCache server. All replicas share it.
    """

    name: str
    capacity_bytes: int
    bytes_per_s: float
    latency_s: float
    chunk_tokens: int = 256
    store_bytes_per_s: float | None = None
    watermark: float = 1.0
    evicted_share: float = 0.0
    owned: bool = False
    server: bool = False

    def faster(self, factor: float) -> Tier:
        """The same tier with its rates multiplied by `factor`."""
        stores = None if self.store_bytes_per_s is None else self.store_bytes_per_s * factor
        return replace(self, bytes_per_s=self.bytes_per_s * factor, store_bytes_per_s=stores)


@dataclass(frozen=True, slots=True)
class Link:
    """What carries KV cache from a prefill engine to a decode engine."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One emulated deployment.

    Args:
        engine: engine whose rules are emulated.
        shape, gpu: the model and the GPU.
        max_model_len: longest sequence, tokens.
        max_num_batched_tokens: token budget of a step (SGLang: chunked_prefill_size, for prefill only).
        max_num_seqs: most sequences that run at once.
        block_size: tokens per KV block (SGLang: page size).
        num_blocks: KV blocks of one replica.
        prefix_caching: whether the prefix cache is on.
        answer_caching: whether the prefix cache keeps generated tokens beside prompts.
        chunked_prefill: whether a prompt may be cut to the token budget.
        policy: order in which waiting sequences are admitted.
        weights, kv: data types of the weights and of the KV cache.
        tensor_parallel, data_parallel: GPUs per replica, and replicas.
        expert_parallel: whether experts are spread whole over the GPUs instead of cut.
        cuda_graphs: whether decode steps replay a captured graph; False: eager.
        max_graph_size: largest batch that was captured.
        async_scheduling: whether the next step is scheduled while the present one computes.
        speculation: None: one token per step.
        tiers: below the GPU, the fastest first.
        transfer: link between one prefill engine and one decode engine; None if each engine does prefill and decode.
        max_prefill_tokens, mixed_chunk, conservativeness: SGLang's options of (nearly) these names.
    """

    engine: Literal["vllm", "sglang"]
    shape: ModelShape
    gpu: HardwareKind
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    num_blocks: int
    prefix_caching: bool = True
    answer_caching: bool = True
    chunked_prefill: bool = True
    policy: Policy = "fcfs"
    weights: Dtype = "bfloat16"
    kv: Dtype = "bfloat16"
    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    cuda_graphs: bool = True
    max_graph_size: int = 512
    async_scheduling: bool = True
    speculation: Speculation | None = None
    tiers: tuple[Tier, ...] = ()
    transfer: Link | None = None
    max_prefill_tokens: int = 16384
    mixed_chunk: bool = False
    conservativeness: float = 1.0
