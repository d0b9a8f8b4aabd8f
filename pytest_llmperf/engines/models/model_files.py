"""Files of a model of a stated shape: seeded weights, and a byte-level BPE tokenizer, written rather than trained.

Every text encodes and decodes to itself, and every id decodes: 256 ids to one byte each, all others to letters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import count, islice, product
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Any

from pytest_llmperf.engines.models.registry import CONFIGS
from pytest_llmperf.shapes import ModelShape

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def tokenizer_files(shape: ModelShape) -> dict[str, str]:
    """File name → text of the tokenizer, with exactly `shape.vocab` ids and specials where the shape has them."""
    bos_id, eos_id = (CONFIGS[shape.name][f"{token}_token_id"] for token in ("bos", "eos"))
    special = {bos_id: "<s>"} | {eos_id: "</s>"}
    symbols = _byte_symbols()
    merges = list(islice(_merges(space=symbols[ord(" ")]), shape.vocab - len(symbols) - len(special)))
    texts = iter(symbols + [left + right for left, right in merges])
    vocabulary = {special[i] if i in special else next(texts): i for i in range(shape.vocab)}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special[bos_id],
        "eos_token": special[eos_id],
        "pad_token": special[eos_id],
        "model_max_length": shape.max_positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    tokenizer = _tokenizer(vocabulary, merges, special)
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")),
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
    }


def _byte_symbols() -> list[str]:
    """A visible character for each byte: the Latin-1 character if it is visible, else the next character from U+0100.

    This is the alphabet of every byte-level BPE since GPT-2.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = count(0x100)
    return [chr(byte if byte in visible else next(hidden)) for byte in range(256)]


def _merges(space: str) -> Iterator[tuple[str, str]]:
    """Pairs that become one token, by rank: two letters, these after a space, three letters, four.

    Syllables of a consonant and a vowel come first, so that a pronounceable word is about two tokens.
    """
    letters = sorted(product(ascii_lowercase, ascii_lowercase), key=lambda two: not _is_syllable(*two))
    pairs = [first + second for first, second in letters]
    yield from letters
    yield from ((space, pair) for pair in pairs)
    yield from product(pairs, ascii_lowercase)
    yield from product(pairs, pairs)


def _is_syllable(first: str, second: str) -> bool:
    return first not in "aeiou" and second in "aeiou"


def _tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]], special: dict[int, str]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in sorted(special.items())],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


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
