"""Seeded random weights of a dense Llama shape as one safetensors file, without an array library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from pytest_llmperf.shapes import ModelShape

# Bits of a bfloat16 are sign, 8 of exponent, 7 of mantissa. Free: sign, lowest exponent bit, mantissa. The rest fixes
# the exponent so that 1/128 <= |w| < 1/32: a spread of 0.019, near the 0.02 with which such models are initialised.
# At that size greedy answers soon repeat themselves, so that speculation from the context has something to find.
_FREE_BITS = 0x80FF
_FIXED_BITS = 0x3C00
_ONE = 0x3F80


def write_weights(shape: ModelShape, path: Path, seed: int) -> None:
    """Write all tensors of `shape`; the same bytes for the same shape and seed, everywhere."""
    tensors = dict(_tensors(shape))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dimensions in tensors.items():
        start, end = end, end + 2 * _size(dimensions)
        header[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, dimensions in tensors.items():
            file.write(_values(name, _size(dimensions), seed))


def _tensors(shape: ModelShape) -> Iterator[tuple[str, list[int]]]:
    """Names and dimensions as LlamaForCausalLM loads them; matrices are [out, in]."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", [shape.vocab, shape.hidden]
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", [shape.hidden]
        yield f"{prefix}.self_attn.q_proj.weight", [queries, shape.hidden]
        yield f"{prefix}.self_attn.k_proj.weight", [keys, shape.hidden]
        yield f"{prefix}.self_attn.v_proj.weight", [keys, shape.hidden]
        yield f"{prefix}.self_attn.o_proj.weight", [shape.hidden, queries]
        yield f"{prefix}.post_attention_layernorm.weight", [shape.hidden]
        yield f"{prefix}.mlp.gate_proj.weight", [shape.intermediate, shape.hidden]
        yield f"{prefix}.mlp.up_proj.weight", [shape.intermediate, shape.hidden]
        yield f"{prefix}.mlp.down_proj.weight", [shape.hidden, shape.intermediate]
    yield "model.norm.weight", [shape.hidden]
    if not shape.tied:
        yield "lm_head.weight", [shape.vocab, shape.hidden]


def _size(dimensions: list[int]) -> int:
    return dimensions[0] * (dimensions[1] if len(dimensions) > 1 else 1)


def _values(name: str, size: int, seed: int) -> bytes:
    """Little-endian bfloat16 values: ones for norms, else random values with a separate random stream per tensor."""
    if name.endswith("norm.weight"):
        return _ONE.to_bytes(2, "little") * size
    rng = Random(int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest(), "big"))
    free = int.from_bytes(_FREE_BITS.to_bytes(2, "little") * size, "little")
    fixed = int.from_bytes(_FIXED_BITS.to_bytes(2, "little") * size, "little")
    return (rng.getrandbits(16 * size) & free | fixed).to_bytes(2 * size, "little")
