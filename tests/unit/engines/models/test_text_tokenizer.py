"""A named tokenizer is found on disk, counts texts, and gives the words of prompts."""

import sys

import pytest

from pytest_llmperf.engines.models.model_files import tokenizer_files
from pytest_llmperf.engines.models.registry import SHAPES
from pytest_llmperf.engines.models.text_tokenizer import text_tokenizer
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.prompts import in_words

pytest.importorskip("tokenizers", reason="pip install tokenizers")


@pytest.fixture(scope="module")
def text():
    """The tokenizer.json of a small model."""
    return tokenizer_files(SHAPES["tiny"])["tokenizer.json"]


@pytest.fixture
def tokenizer(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    return text_tokenizer(str(tmp_path), tmp_path)


@pytest.mark.parametrize("place", ["tokenizer.json", "."])
def test_tokenizer_is_read_from_a_file_or_a_folder(tmp_path, text, place):
    (tmp_path / "tokenizer.json").write_text(text)
    assert text_tokenizer(place, tmp_path).counts(["ab"]) == (1,)


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME"])
def test_tokenizer_is_found_in_the_local_cache_of_the_hub(tmp_path, text, variable):
    hub = tmp_path if variable == "HF_HUB_CACHE" else tmp_path / "hub"
    for commit in ("old", "current"):
        folder = hub / "models--org--name" / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text(text if commit == "current" else "{")
    (hub / "models--org--name" / "refs").mkdir()
    (hub / "models--org--name" / "refs" / "main").write_text("current")
    assert text_tokenizer("org/name", tmp_path, {variable: str(tmp_path)}).counts(["ab"]) == (1,)


def test_absent_tokenizer_is_refused_without_a_download(tmp_path):
    with pytest.raises(SpecError, match=r"tokenizer='org/name'.*nothing is downloaded.*hf download org/name"):
        text_tokenizer("org/name", tmp_path, {"HF_HOME": str(tmp_path)})


def test_broken_tokenizer_is_refused_with_file(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SpecError, match=r"tokenizer.json cannot be read as a tokenizer.json"):
        text_tokenizer(str(tmp_path), tmp_path)


def test_missing_library_is_refused_with_the_command_to_install(tmp_path, text, monkeypatch):
    (tmp_path / "tokenizer.json").write_text(text)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SpecError, match="pip install tokenizers"):
        text_tokenizer(str(tmp_path / "tokenizer.json"), tmp_path)


@pytest.mark.parametrize("pieces", [["ab", " ab"], ["a", "b a", "b"], ["", "ab ab"], ["é", "ü ab"]])
def test_counts_of_pieces_add_up_to_the_whole_text(tokenizer, pieces):
    counts = tokenizer.counts(pieces)
    assert len(counts) == len(pieces)
    assert sum(counts) == sum(tokenizer.counts(["".join(pieces)]))


def test_token_belongs_to_the_completing_piece(tokenizer):
    assert tokenizer.counts(["a", "b", " ab"]) == (0, 1, 1)


def test_prompt_in_words_has_the_stated_number_of_tokens(tokenizer):
    requests = in_words([Request(0, tuple(range(1000, 1500)), 1, 500)], tokenizer.words)
    assert tokenizer.counts([requests[0].prompt]) == (500,)
