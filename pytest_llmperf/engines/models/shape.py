"""The dimensions of a decoder-only transformer, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BYTES_PER_VALUE = {"bfloat16": 2, "float16": 2, "float32": 4}
SCALE_BITS = 16  # of a group of quantised weights


@dataclass(frozen=True, slots=True)
class Quantization:
    """Integer weights in the matrices of all layers, in the checkpoint format of GPTQ or AWQ.

    Embedding, output projection, router and norms keep the `dtype` of the shape. Checkpoints of GPTQ contain zero
    points even if all of them are equal; engines do not keep those.

    Args:
        method: format of the checkpoint.
        zero_points: whether each group has a zero point of its own.
        bits: bits of a weight and of a zero point.
        group_size: number of successive input channels that share a scale.
    """

    method: Literal["gptq", "awq"]
    zero_points: bool
    bits: int = 4
    group_size: int = 128

    @property
    def bits_per_weight(self) -> float:
        """Bits of a weight with its part of the group's scale and zero point."""
        return self.bits + (SCALE_BITS + self.bits * self.zero_points) / self.group_size


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions as published. A dense model is one expert that is always active, without a router.

    Args:
        name: in the registry.
        family: the `model_type` of its config.json.
        architecture: the class that engines load.
        layers, hidden, heads, kv_heads, head_dim, intermediate, vocab: sizes; `intermediate` of one expert.
        max_positions: longest sequence.
        bos_id, eos_id: special tokens; all others decode to text.
        experts, active_experts: per layer, and per token.
        tie_embeddings: whether the output projection is the embedding.
        qk_norm: whether queries and keys are normalised per head.
        dtype: of weights and KV cache.
        quantization: format of the weights in the matrices of all layers; None for `dtype`.
    """

    name: str
    family: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    bos_id: int
    eos_id: int
    experts: int = 1
    active_experts: int = 1
    tie_embeddings: bool = False
    qk_norm: bool = False
    dtype: str = "bfloat16"
    quantization: Quantization | None = None

    @property
    def parameters(self) -> int:
        """All parameters, as the published count: embeddings, layers, final norm, output projection unless tied."""
        return self._parameters(self.experts)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes: `parameters` with the active experts only."""
        return self._parameters(self.active_experts)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters, in `dtype` or quantised."""
        return self._bytes(self.parameters, self.experts)

    @property
    def decode_bytes(self) -> int:
        """Bytes of weights that a step reads for one token of one sequence: of the embedding table one row only."""
        table = 0 if self.tie_embeddings else self.vocab * self.hidden
        return self._bytes(self.active_parameters - table, self.active_experts)

    @property
    def prompt_flops(self) -> int:
        """FLOPs of one prompt token in the matrices of all layers; attention and the output projection come on top."""
        per_layer = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return 2 * self.layers * (per_layer + self.active_experts * 3 * self.hidden * self.intermediate)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token keeps in all layers, in `dtype`."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_VALUE[self.dtype]

    def _parameters(self, experts: int) -> int:
        embeddings = self.vocab * self.hidden * (1 if self.tie_embeddings else 2)
        router = self.hidden * self.experts if self.experts > 1 else 0
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return embeddings + self._matrices(experts) + self.layers * (router + norms) + self.hidden

    def _matrices(self, experts: int) -> int:
        """Parameters of attention and MLP in all layers, with `experts` experts per layer."""
        queries_and_output = 2 * self.hidden * self.heads * self.head_dim
        keys_and_values = 2 * self.hidden * self.kv_heads * self.head_dim
        return self.layers * (queries_and_output + keys_and_values + experts * 3 * self.hidden * self.intermediate)

    def _bytes(self, parameters: int, experts: int) -> int:
        """Bytes of `parameters`, which contain the matrices of all layers with `experts` experts."""
        if self.quantization is None:
            return parameters * BYTES_PER_VALUE[self.dtype]
        matrices = self._matrices(experts)
        packed = round(matrices * self.quantization.bits_per_weight / 8)
        return packed + (parameters - matrices) * BYTES_PER_VALUE[self.dtype]
