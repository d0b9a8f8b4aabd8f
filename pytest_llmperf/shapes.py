"""The published dimensions of models, and the bytes and operations that follow from them.

The emulator shares no code with the rest of the package. It reads this table because the rows are data of publishers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
class Quantization:
    """Integer weights in the matrices of all layers, in the checkpoint format of GPTQ or AWQ.

    Their products are computed in bfloat16. Embedding, output projection and norms keep 16 bits. Checkpoints of GPTQ
    contain zero points even if all of them are equal; engines do not keep those.

    Args:
        method: format of the checkpoint.
        zero_points: whether each group has a zero point of its own.
        bits: bits of a weight and of a zero point.
        group_size: number of successive input channels that share a scale; below 1 for one scale of a whole channel.
    """

    method: Literal["gptq", "awq"]
    zero_points: bool
    bits: int = 4
    group_size: int = 128

    @property
    def bits_per_weight(self) -> float:
        """Bits of a weight with its part of the group's scale of 16 bits and zero point."""
        return self.bits + ((16 + self.bits * self.zero_points) / self.group_size if self.group_size > 0 else 0)


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
        quantization: set where the matrices of all layers are published as integers.
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
    quantization: Quantization | None = None

    @property
    def moe(self) -> bool:
        return self.experts > 1

    @property
    def expert_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers if self.moe else 0

    @property
    def expert_parameters(self) -> int:
        """Number of parameters of one routed expert in one layer."""
        return 3 * self.hidden * self.intermediate

    @property
    def attention_parameters(self) -> int:
        """Number of parameters of the attention projections of one layer."""
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
        """Number of parameters of all matrices that every token passes: all but embedding, head, norms and routed
        experts."""
        attention = self.layers * self.attention_parameters
        if not self.moe:
            return attention + self.layers * self.expert_parameters
        plain = self.dense_layers * 3 * self.hidden * self.dense_intermediate
        shared = self.expert_layers * self.shared_experts * self.expert_parameters
        return attention + plain + shared + self.router_parameters

    @property
    def router_parameters(self) -> int:
        """Number of parameters of all routers."""
        return self.expert_layers * self.experts * self.hidden

    @property
    def head_parameters(self) -> int:
        """Number of parameters of the output projection, which is read in every step, tied or not."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All, as the published count."""
        embeddings = self.head_parameters * (1 if self.tied else 2)
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        routed = self.expert_layers * self.experts * self.expert_parameters
        return embeddings + self.dense_parameters + routed + self.layers * norms + self.hidden

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes: of the routed experts the active ones only."""
        return self.parameters - self.expert_layers * (self.experts - self.active_experts) * self.expert_parameters

    @property
    def active_matrices(self) -> int:
        """Parameters of the layers' matrices that one token passes, without the router."""
        routed = self.expert_layers * self.active_experts * self.expert_parameters
        return self.dense_parameters - self.router_parameters + routed

    @property
    def decode_bytes(self) -> int:
        """Bytes of weights that a step reads for one token of one sequence: of the embedding table one row only."""
        read = self.active_parameters - (0 if self.tied else self.head_parameters)
        matrices = self.active_matrices
        return round(matrices * self.matrix_bytes("bfloat16")) + (read - matrices) * 2

    @property
    def prompt_flops(self) -> int:
        """FLOPs of one prompt token in the matrices of all layers; attention and the output projection come on top."""
        return 2 * self.active_matrices

    def weight_bytes(self, weights: Dtype = "bfloat16") -> int:
        """Bytes of all weights. Embedding, head and norms stay in bfloat16 where the rest is fp8 or quantised; with
        integer weights the routers, too."""
        dense = self.dense_parameters - (self.router_parameters if self.quantization else 0)
        routed = self.expert_layers * self.experts * self.expert_parameters
        rest = self.parameters - dense - routed
        return int(dense * self.matrix_bytes(weights) + routed * self.expert_bytes(weights) + rest * 2)

    def weights_text(self, weights: Dtype) -> str:
        """The format of the matrices, for people."""
        return f"{self.quantization.method} int{self.quantization.bits}" if self.quantization else weights

    def matrix_bytes(self, weights: Dtype) -> float:
        """Bytes per weight of a matrix that every token passes."""
        return self.quantization.bits_per_weight / 8 if self.quantization else float(BYTES[weights])

    def expert_bytes(self, weights: Dtype) -> float:
        """Bytes per weight of a routed expert."""
        return self.expert_bits / 8 if self.expert_bits else self.matrix_bytes(weights)

    def kv_bytes_per_token(self, kv: Dtype = "bfloat16") -> int:
        """KV cache bytes per token over all layers. Layers with a sliding window count in full."""
        values = self.latent.kv_rank + self.latent.rope if self.latent else 2 * self.kv_heads * self.head_dim
        return (self.layers - self.linear_layers) * values * BYTES[kv]

    @property
    def pair_flops(self) -> int:
        """FLOPs of one query–key pair in all layers: 2 for the score and 2 for the value, per head and dimension."""
        dims = self.latent.rope + self.latent.nope + self.latent.value if self.latent else 2 * self.head_dim
        return 2 * (self.layers - self.linear_layers) * self.heads * dims


_V3 = Latent(query_rank=1536, kv_rank=512, rope=64, nope=128, value=128)

_LLAMA_8B = ModelShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256)
_SHAPES = (
    _LLAMA_8B,
    replace(_LLAMA_8B, name="llama-3.1-8b-gptq-int4", quantization=Quantization("gptq", zero_points=False)),
    replace(_LLAMA_8B, name="llama-3.1-8b-awq-int4", quantization=Quantization("awq", zero_points=True)),
    ModelShape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256),
    ModelShape("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, qk_norm=True, max_positions=40960),
    ModelShape("qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936, qk_norm=True, max_positions=40960),
    ModelShape("phi-4-mini", 32, 3072, 24, 8, 128, 8192, 200064, tied=True),
    ModelShape("mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, experts=8, active_experts=2, max_positions=32768),
    ModelShape("qwen3-30b-a3b", 48, 2048, 32, 4, 128, 768, 151936, experts=128, active_experts=8, qk_norm=True,
               max_positions=40960),
    ModelShape("tiny", 4, 256, 4, 2, 64, 768, 10240, max_positions=32768),
    ModelShape("qwen3-235b-a22b", 94, 4096, 64, 4, 128, 1536, 151936, experts=128, active_experts=8, qk_norm=True,
               max_positions=40960),
    ModelShape("gpt-oss-120b", 36, 2880, 64, 8, 64, 2880, 201088, experts=128, active_experts=4, window=128,
               window_layers=18, expert_bits=4.25),
    ModelShape("deepseek-v3", 61, 7168, 128, 128, 192, 2048, 129280, experts=256, active_experts=8, shared_experts=1,
               dense_layers=3, dense_intermediate=18432, latent=_V3, max_positions=163840, published="fp8"),
    ModelShape("kimi-k2.5", 61, 7168, 64, 64, 192, 2048, 163840, experts=384, active_experts=8, shared_experts=1,
               dense_layers=1, dense_intermediate=18432, latent=_V3, max_positions=262144, expert_bits=4.5),
    ModelShape("minimax-m2.5", 62, 3072, 48, 8, 128, 1536, 200064, experts=256, active_experts=8, qk_norm=True,
               max_positions=196608, published="fp8"),
    ModelShape("glm-5", 78, 6144, 64, 64, 256, 2048, 154880, experts=256, active_experts=8, shared_experts=1,
               dense_layers=3, dense_intermediate=12288, max_positions=202752, published="fp8",
               latent=Latent(query_rank=2048, kv_rank=512, rope=64, nope=192, value=256, top_k=2048)),
    ModelShape("qwen3.5-397b-a17b", 60, 4096, 32, 2, 256, 1024, 248320, experts=512, active_experts=10,
               shared_experts=1, linear_layers=45, max_positions=262144),
)

SHAPES = {shape.name: shape for shape in _SHAPES}
