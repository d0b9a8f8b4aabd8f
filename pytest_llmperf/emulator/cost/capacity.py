"""The KV cache capacity: GPU memory without weights and activations."""

from __future__ import annotations

from pytest_llmperf.kinds.rows import HardwareKind
from pytest_llmperf.shapes import Dtype, ModelShape

_MIB = 2**20
_NCCL_BYTES = 50 * _MIB  # and cuBLAS and graph pools, beyond what vLLM counts as activations
# Of logits in float32, for each sequence: 6.6 with 4 drafts, 6.4 to 7.4 with 8 to 16 (docs/measured/h200).
_DRAFTING_ROWS = 7
_CONTEXT_BYTES = 500 * _MIB  # CUDA's own, which SGLang finds taken before it reckons


class DoesNotFit(ValueError):
    """The weights leave no room for a KV cache."""


def sglang_utilization(gpu: HardwareKind, max_num_batched_tokens: int = 8192, tp: int = 1) -> float:
    """Share of the GPU's memory that SGLang takes by default.

    It keeps aside, in MiB: 512, 1.5 per token of a chunk, 2 per captured batch size, and 128 per GPU.
    """
    graphs = (256 if tp < 4 else 512) if gpu.memory_bytes >= 60e9 else (24 if tp < 4 else 80)
    graphs = 512 if gpu.memory_bytes >= 160 * 2**30 else graphs
    aside = (512 + 1.5 * max(max_num_batched_tokens, 2048) + 2 * graphs + 128 * tp) * _MIB
    return round(1 - aside / gpu.memory_bytes, 3)


def kv_bytes_per_gpu(shape: ModelShape, kv: Dtype, tp: int) -> float:
    """Bytes of one token on each GPU: heads are cut, and copied where there are fewer than GPUs; a latent is copied."""
    if shape.latent is not None:
        return float(shape.kv_bytes_per_token(kv))
    return shape.kv_bytes_per_token(kv) / min(tp, shape.kv_heads)


def activation_bytes(shape: ModelShape, tp: int, max_num_batched_tokens: int, max_num_seqs: int = 1024) -> float:
    """The peak of a step at full budget: the MLP's in- and outputs, the residual, and logits in float32."""
    width = shape.intermediate * (shape.active_experts + shape.shared_experts) if shape.moe else shape.intermediate
    per_token = 2 * (3 * max(width, shape.dense_intermediate) / tp + 4 * shape.hidden)
    return max_num_batched_tokens * per_token + min(max_num_seqs, max_num_batched_tokens) * shape.vocab * 4 / tp


def kv_blocks(  # noqa: PLR0917 - the arguments are the engine's own flags, in one agreed order
    shape: ModelShape,
    gpu: HardwareKind,
    tp: int,
    weights: Dtype,
    kv: Dtype,
    block_size: int,
    utilization: float,
    max_num_batched_tokens: int,
    *,
    engine: str = "vllm",
    weight_gpus: int | None = None,
    drafting: int = 0,
) -> int:
    """Blocks of `block_size` tokens in one replica.

    vLLM takes `utilization` of the memory for everything; SGLang's share holds weights and cache only.
    `weight_gpus`: over how many GPUs the weights are spread, where not tp (experts over replicas).
    `drafting`: most sequences whose drafts vLLM verifies at once; 0 without drafts.

    Raises:
        DoesNotFit: the weights leave no memory for KV cache. The message names the memory that the weights need and
            the memory that is available.
    """
    budget = gpu.memory_bytes * utilization
    held = shape.weight_bytes(weights) / (weight_gpus or tp)
    if engine == "vllm":
        budget -= _NCCL_BYTES + activation_bytes(shape, tp, max_num_batched_tokens)
        budget -= drafting * _DRAFTING_ROWS * shape.vocab * 4
    else:
        budget -= _CONTEXT_BYTES * utilization
    blocks = int((budget - held) // (kv_bytes_per_gpu(shape, kv, tp) * block_size))
    if blocks <= 0:
        raise DoesNotFit(
            f"{shape.name} in {shape.weights_text(weights)} on {tp} × {gpu.name}: weights take {held / 2**30:.1f} GiB "
            f"of each GPU, {budget / 2**30:.1f} GiB are there for weights and KV cache"
        )
    return blocks
