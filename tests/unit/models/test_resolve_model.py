"""Names, folders and hub ids; building once."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from pytest_llmperf.engines.models import SHAPES, ResolvedModel, resolve_model
from pytest_llmperf.engines.models.resolve import FORMAT
from pytest_llmperf.errors import InfrastructureError, SpecError

# SHA-256 over all files of each model. Where one changes, raise FORMAT in resolve.py and take the new values.
GOLDEN_FORMAT = 2
GOLDEN = {
    "llama-3.1-8b": "422ea2c128200438",
    "llama-3.1-8b-gptq-int4": "a2898bc7a3edd220",
    "llama-3.1-8b-awq-int4": "48e8ce64b4a511a9",
    "llama-3.1-70b": "59b6c97299537dd9",
    "qwen3-8b": "d8a5f290c9a5d74b",
    "phi-4-mini": "1433325e241bf901",
    "mixtral-8x7b": "232e8492a249068d",
    "qwen3-30b-a3b": "cf4c0d8527fefd3b",
    "tiny": "dc998cffb969e22e",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


def content(folder: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("name", SHAPES)
def test_a_built_model_never_changes_under_the_same_format(name, cache):
    assert FORMAT == GOLDEN_FORMAT
    assert content(resolve_model(name, cache).path_or_hub_id) == GOLDEN[name]


def test_a_shape_is_built_with_dummy_weights(cache):
    model = resolve_model("qwen3-8b", cache)
    assert model == ResolvedModel(model.path_or_hub_id, "dummy", SHAPES["qwen3-8b"], "qwen3-8b", 40960, 151936)
    assert sorted(p.name for p in Path(model.path_or_hub_id).iterdir()) == [
        "config.json", "tokenizer.json", "tokenizer_config.json"]


def test_tiny_model_contains_all_seeded_weights(cache):
    model = resolve_model("tiny", cache)
    assert model.weights == "seeded"
    with safe_open(Path(model.path_or_hub_id) / "model.safetensors", framework="np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no mapping
        kinds = {file.get_slice(name).get_dtype() for name in shapes}
    assert kinds == {"BF16"}
    assert shapes["model.layers.3.self_attn.k_proj.weight"] == [128, 256]
    sizes = (s[0] * (s[1] if len(s) > 1 else 1) for s in shapes.values())
    assert sum(sizes) == SHAPES["tiny"].parameters


def test_tiny_weights_are_small_signed_and_different(cache):
    path = Path(resolve_model("tiny", cache).path_or_hub_id) / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])

    def values(name: str) -> list[float]:
        start, end = header[name]["data_offsets"]
        raw = data[8 + length + start : 8 + length + end]
        return [struct.unpack("<f", b"\0\0" + raw[i : i + 2])[0] for i in range(0, min(len(raw), 20_000), 2)]

    queries, keys = values("model.layers.0.self_attn.q_proj.weight"), values("model.layers.0.self_attn.k_proj.weight")
    assert set(values("model.norm.weight")) == {1.0}
    assert all(1 / 128 <= abs(w) < 1 / 32 for w in queries)
    assert abs(sum(queries) / len(queries)) < 0.001
    assert (sum(w * w for w in queries) / len(queries)) ** 0.5 == pytest.approx(0.019, rel=0.02)
    assert queries[:50] != keys[:50]


def test_second_resolve_uses_built_model(cache):
    folder = Path(resolve_model("mixtral-8x7b", cache).path_or_hub_id)
    stamp = folder.stat().st_mtime_ns
    assert resolve_model("mixtral-8x7b", cache) == resolve_model("mixtral-8x7b", cache)
    assert folder.stat().st_mtime_ns == stamp


def test_a_build_that_was_cut_off_is_begun_again(tmp_path):
    folder = Path(resolve_model("mixtral-8x7b", tmp_path).path_or_hub_id)
    half = tmp_path / f".{folder.name}.building"
    folder.rename(half)
    (half / "config.json").unlink()
    assert content(resolve_model("mixtral-8x7b", tmp_path).path_or_hub_id) == GOLDEN["mixtral-8x7b"]
    assert not half.exists()


RESOLVE = """
import sys
from pathlib import Path
from pytest_llmperf.engines.models import resolve_model
print(resolve_model("tiny", Path(sys.argv[1])).path_or_hub_id)
"""


def test_processes_that_build_at_once_get_one_whole_model(tmp_path):
    command = [sys.executable, "-c", RESOLVE, str(tmp_path)]
    builders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    folders = {builder.communicate(timeout=60)[0].strip() for builder in builders}
    assert [content(folder) for folder in folders] == [GOLDEN["tiny"]]
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 1


def test_a_folder_with_a_config_is_a_checkpoint_wherever_one_starts_from(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir("/")
    expected = ResolvedModel(str(tmp_path / "mine"), "checkpoint", None, "mine")
    assert resolve_model(str(tmp_path / "mine"), tmp_path / "cache") == expected
    assert resolve_model("./mine", tmp_path / "cache", tmp_path) == expected


@pytest.mark.parametrize(("config", "longest", "vocabulary"), [
    ('{"max_position_embeddings": 4096, "vocab_size": 384}', 4096, 384),
    ('{"max_position_embeddings": 4096, "rope_scaling": {"factor": 8}}', None, None),
    ('{"max_position_embeddings": "4096", "vocab_size": true}', None, None),
    ('[]', None, None),
    ('{', None, None),
])
def test_folder_states_longest_sequence_and_vocabulary_size(tmp_path, config, longest, vocabulary):
    (tmp_path / "config.json").write_text(config)
    model = resolve_model(str(tmp_path), tmp_path)
    assert (model.longest_sequence, model.vocabulary_size) == (longest, vocabulary)


def test_shape_states_longest_sequence_and_vocabulary_size(cache):
    model = resolve_model("tiny", cache)
    assert (model.longest_sequence, model.vocabulary_size) == (SHAPES["tiny"].max_positions, SHAPES["tiny"].vocab)


def test_an_unknown_hub_id_goes_through(tmp_path):
    model = resolve_model("Qwen/Qwen3-8B", tmp_path)
    assert model == ResolvedModel("Qwen/Qwen3-8B", "checkpoint", None, "Qwen/Qwen3-8B")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "part"), [
    ("llama-3-8b", "Did you mean 'llama-3.1-8b'.*Shapes: llama-3.1-8b, .*tiny"),
    ("Tinny", "Did you mean 'tiny'"),
    ("llama-3.1-8B-instruct", "Did you mean 'llama-3.1-8b'"),
    ("Llama-3.1-8B-Instruct-AWQ", "Did you mean 'llama-3.1-8b-awq-int4'"),
    ("llama-8b-int4", "Did you mean 'llama-3.1-8b-[a-z]*-int4'"),
    ("/no/such/folder", "no model '/no/such/folder'"),
    ("xyzzy", "no model 'xyzzy'.*hub id"),
    ("", "no model ''"),
    ("~nosuch/model", "no model '~nosuch/model'"),
    ("a" * 300, "cannot be looked at: .*File name too long"),
    ("a\0b", "no model"),
])
def test_unknown_model_is_refused_with_suggestion(tmp_path, name, part):
    with pytest.raises(SpecError, match=part) as caught:
        resolve_model(name, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_config_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"holds no config\.json"):
        resolve_model(str(tmp_path), tmp_path / "cache")


@pytest.mark.skipif(os.getuid() == 0, reason="root may enter every folder")
def test_unreadable_model_folder_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(SpecError, match=r"cannot be looked at: .*Permission denied"):
        resolve_model("closed/mine", tmp_path / "cache", tmp_path)


def test_model_is_built_in_temporary_folder_if_the_cache_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    model = resolve_model("qwen3-8b", tmp_path / "file" / "models")
    assert Path(model.path_or_hub_id).parent == tmp_path / f"llmperf-models-{os.getuid()}"
    assert resolve_model("qwen3-8b", tmp_path / "file" / "models") == model


def test_model_that_cannot_be_built_is_an_error(tmp_path):
    stored = Path(resolve_model("qwen3-8b", tmp_path).path_or_hub_id)
    shutil.rmtree(stored)
    (tmp_path / f".{stored.name}.building").touch()
    with pytest.raises(InfrastructureError, match=r"The model qwen3-8b cannot be built: .*cache_dir"):
        resolve_model("qwen3-8b", tmp_path)
