"""The dimensions of a decoder-only transformer, and the bytes and operations of a step that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["bfloat16", "fp8"]
BYTES: dict[str, int] = {"bfloat16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: one compressed key and value for all heads.

    Args:
        query_rank, kv_rank: ranks of the compressions; a query_rank of 0 means no compression of queries.
        rope, nope, value: dimensions per head of the rotated part of a key, of its other part, and of a value.
        top_k: number of tokens that sparse attention reads; 0 for all tokens.
    """

    query_rank: int
    kv_rank: int
    rope: int
    nope: int
    value: int
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Packed:
    """Integer weights in the matrices of all layers. Their products are computed in bfloat16.

    Args:
        method: format of the checkpoint, "gptq" or "awq".
        bits: bits of a weight.
        bits_per_weight: bits of a weight with its part of the scale and zero point of its group.
    """

    method: str
    bits: int
    bits_per_weight: float


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Dimensions as published. A dense model is one expert that is always active, without a router.

    Args:
        name: its short name or its hub id.
        layers, hidden, heads, kv_heads, head_dim, intermediate, vocab: sizes; `intermediate` of one expert.
        experts, active_experts: routed ones, per layer and per token; shared ones come on top.
        tied: whether the output projection is the embedding.
        qk_norm: whether queries and keys are normalised per head.
        max_positions: longest sequence.
        shared_experts: of `intermediate` each, always active.
        dense_layers, dense_intermediate: the first layers of a mixture of experts that have a plain MLP, and its size.
        latent: set where attention is latent; `kv_heads` and `head_dim` are then not used.
        window, window_layers: `window_layers` layers attend to the last `window` tokens only.
        linear_layers: number of layers with linear attention: a state of fixed size instead of a KV cache.
        published: how its weights are kept unless the engine's flags say otherwise.
        expert_bits: bits per weight of the routed experts where these are published in a smaller format.
        packed: set where the matrices of all layers are published as integers.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    experts: int = 1
    active_experts: int = 1
    tied: bool = False
    qk_norm: bool = False
    max_positions: int = 131072
    shared_experts: int = 0
    dense_layers: int = 0
    dense_intermediate: int = 0
    latent: Latent | None = None
    window: int = 0
    window_layers: int = 0
    linear_layers: int = 0
    published: Dtype = "bfloat16"
    expert_bits: float | None = None
    packed: Packed | None = None

    @property
    def moe(self) -> bool:
        return self.experts > 1

    @property
    def expert_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers if self.moe else 0

    @property
    def expert_parameters(self) -> int:
        """Of one routed expert in one layer."""
        return 3 * self.hidden * self.intermediate

    @property
    def attention_parameters(self) -> int:
        """Of one layer's projections."""
        if self.latent is None:
            return 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        latent = self.latent
        keys = latent.rope + latent.nope
        into_queries = self.hidden * latent.query_rank if latent.query_rank else 0
        queries = (latent.query_rank or self.hidden) * self.heads * keys
        into_latent = self.hidden * (latent.kv_rank + latent.rope)
        from_latent = latent.kv_rank * self.heads * (latent.nope + latent.value)
        return into_queries + queries + into_latent + from_latent + self.heads * latent.value * self.hidden

    @property
    def dense_parameters(self) -> int:
        """Of all layers' matrices that every token passes: all but embedding, head, norms and routed experts."""
        attention = self.layers * self.attention_parameters
        if not self.moe:
            return attention + self.layers * self.expert_parameters
        plain = self.dense_layers * 3 * self.hidden * self.dense_intermediate
        shared = self.shared_experts * self.expert_parameters + self.hidden * self.experts
        return attention + plain + self.expert_layers * shared

    @property
    def head_parameters(self) -> int:
        """Of the output projection; it is read in every step, tied or not."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All, as the published count."""
        embeddings = self.head_parameters * (1 if self.tied else 2)
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        routed = self.expert_layers * self.experts * self.expert_parameters
        return embeddings + self.dense_parameters + routed + self.layers * norms + self.hidden

    def weight_bytes(self, weights: Dtype) -> int:
        """Bytes of all weights; embedding, head and norms stay in bfloat16 where the rest is fp8 or packed."""
        matrices = self.dense_parameters * self.matrix_bytes(weights)
        routed = self.expert_layers * self.experts * self.expert_parameters
        rest = self.parameters - self.dense_parameters - routed
        return int(matrices + routed * self.expert_bytes(weights) + rest * 2)

    def weights_text(self, weights: Dtype) -> str:
        """The format of the matrices, for people."""
        return f"{self.packed.method} int{self.packed.bits}" if self.packed else weights

    def matrix_bytes(self, weights: Dtype) -> float:
        """Bytes per weight of a matrix that every token passes."""
        return self.packed.bits_per_weight / 8 if self.packed else float(BYTES[weights])

    def expert_bytes(self, weights: Dtype) -> float:
        """Bytes per weight of a routed expert."""
        return self.expert_bits / 8 if self.expert_bits else self.matrix_bytes(weights)

    def kv_bytes_per_token(self, kv: Dtype) -> int:
        """KV cache bytes per token over all layers. Layers with a sliding window count in full."""
        values = self.latent.kv_rank + self.latent.rope if self.latent else 2 * self.kv_heads * self.head_dim
        return (self.layers - self.linear_layers) * values * BYTES[kv]

    @property
    def pair_flops(self) -> int:
        """FLOPs of one query–key pair in all layers: 2 for the score and 2 for the value, per head and dimension."""
        dims = self.latent.rope + self.latent.nope + self.latent.value if self.latent else 2 * self.head_dim
        return 2 * (self.layers - self.linear_layers) * self.heads * dims
