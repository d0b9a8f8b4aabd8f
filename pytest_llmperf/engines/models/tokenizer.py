"""A byte-level BPE tokenizer of any size, written down rather than trained.

Every text encodes and decodes to itself, and every id decodes: 256 ids to one byte each, all others to letters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, islice, product
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
