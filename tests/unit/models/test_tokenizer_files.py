"""The written tokenizer, read back by an independent encoder and decoder."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.engines.models import SHAPES
from pytest_llmperf.engines.models.model_files import tokenizer_files
from pytest_llmperf.engines.models.registry import CONFIGS


def load(name: str) -> dict:
    return json.loads(tokenizer_files(SHAPES[name])["tokenizer.json"])


TINY = load("tiny")
VOCABULARY = TINY["model"]["vocab"]
RANK = {tuple(merge.split(" ")): rank for rank, merge in enumerate(TINY["model"]["merges"])}


def byte_of(character: str) -> int:
    """GPT-2's alphabet, inverted: visible Latin-1 is itself, the 68 others follow from U+0100 on in byte order."""
    hidden = [b for b in range(256) if not (33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255)]
    return hidden[ord(character) - 256] if ord(character) >= 256 else ord(character)


def encode(text: str) -> list[int]:
    """Plain BPE of one word: the merge of lowest rank first, the leftmost of these first."""
    character_of = {byte_of(chr(code)): chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 324))}
    parts = [character_of[byte] for byte in text.encode()]
    while True:
        ranked = [(RANK[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in RANK]
        if not ranked:
            return [VOCABULARY[part] for part in parts]
        _, i = min(ranked)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def decode(ids: list[int]) -> str:
    texts = {i: text for text, i in VOCABULARY.items()}
    return bytes(byte_of(c) for i in ids for c in texts[i]).decode()


@pytest.mark.parametrize("name", SHAPES)
def test_each_token_id_occurs_once_in_vocabulary(name):
    model = load(name)["model"]
    assert sorted(model["vocab"].values()) == list(range(SHAPES[name].vocab))


@pytest.mark.parametrize("name", SHAPES)
def test_every_merge_joins_two_known_tokens_into_a_third(name):
    model = load(name)["model"]
    for merge in model["merges"]:
        left, right = merge.split(" ")
        assert left in model["vocab"]
        assert right in model["vocab"]
        assert left + right in model["vocab"]
    assert len(set(model["merges"])) == len(model["merges"])


@pytest.mark.parametrize("name", SHAPES)
def test_specials_sit_where_the_config_says(name):
    config, files = CONFIGS[name], tokenizer_files(SHAPES[name])
    added = {token["content"]: token["id"] for token in json.loads(files["tokenizer.json"])["added_tokens"]}
    settings = json.loads(files["tokenizer_config.json"])
    assert added[settings["bos_token"]] == config["bos_token_id"]
    assert added[settings["eos_token"]] == config["eos_token_id"]


def test_ids_of_workloads_are_lower_case_letters():
    texts = {i: text.removeprefix("Ġ") for text, i in VOCABULARY.items()}
    assert all(texts[i].isascii() and texts[i].isalpha() and texts[i].islower() for i in range(1000, 10_000))


@given(st.text(max_size=30))
def test_decoded_text_equals_original_text(text):
    assert decode(encode(text)) == text


def test_a_pronounceable_word_is_about_two_tokens():
    assert len(encode(" dapim")) == 2
