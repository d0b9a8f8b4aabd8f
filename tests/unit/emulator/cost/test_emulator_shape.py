"""Dimensions and datasheets."""

import json
from pathlib import Path

import pytest

from pytest_llmperf.emulator.cost.shape import UnknownModel, read_shape
from pytest_llmperf.engines.models import resolve_model
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.shapes import SHAPES


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama-3.1-8b", 8.03, 8.03),
        ("llama-3.1-70b", 70.55, 70.55),
        ("qwen3-8b", 8.19, 8.19),
        ("qwen3-32b", 32.76, 32.76),
        ("phi-4-mini", 3.836, 3.836),
        ("mixtral-8x7b", 46.70, 12.88),
        ("qwen3-30b-a3b", 30.53, 3.353),
        ("qwen3-235b-a22b", 235.09, 22.19),
        ("deepseek-v3", 671.03, 37.55),
    ],
)
def test_parameters_are_the_published_count(name, billions, active):
    shape = SHAPES[name]
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.001)
    assert shape.active_parameters / 1e9 == pytest.approx(active, rel=0.001)


def test_kv_bytes_per_token_match_architecture():
    assert SHAPES["llama-3.1-8b"].kv_bytes_per_token("bfloat16") == 131072
    assert SHAPES["llama-3.1-8b"].kv_bytes_per_token("fp8") == 65536
    assert SHAPES["deepseek-v3"].kv_bytes_per_token("bfloat16") == 61 * (512 + 64) * 2


def test_fp8_halves_the_matrices_and_leaves_embedding_and_head():
    shape = SHAPES["llama-3.1-70b"]
    saved = shape.weight_bytes("bfloat16") - shape.weight_bytes("fp8")
    assert saved == shape.dense_parameters
    assert shape.parameters - shape.dense_parameters == pytest.approx(2 * 128256 * 8192, rel=0.01)


@pytest.mark.parametrize("name", ["llama-3.1-8b-gptq-int4", "llama-3.1-8b-awq-int4"])
def test_int4_bytes_of_shape_and_folder_are_equal(name, tmp_path):
    shape = SHAPES[name]
    folder_shape = read_shape(resolve_model(name, tmp_path).path_or_hub_id)
    assert folder_shape.quantization == shape.quantization
    assert folder_shape.weight_bytes("bfloat16") == shape.weight_bytes("bfloat16")
    assert read_shape(f"hugging-quants/Meta-Llama-3.1-8B-Instruct-{shape.quantization.method.upper()}-INT4") is shape


def test_symmetric_groups_and_whole_channels_have_fewer_bits(tmp_path):
    config = json.loads((Path(resolve_model("llama-3.1-8b", tmp_path).path_or_hub_id) / "config.json").read_text())
    (tmp_path / "given").mkdir()

    def bits(**section):
        text = json.dumps(config | {"quantization_config": {"quant_method": "gptq", "bits": 4} | section})
        (tmp_path / "given" / "config.json").write_text(text)
        return read_shape(tmp_path / "given").quantization.bits_per_weight

    assert bits(group_size=64, sym=True) == 4 + 16 / 64
    assert bits(group_size=64, sym=False) == 4 + 20 / 64
    assert bits(group_size=-1) == 4


def test_hub_ids_are_aliases():
    assert read_shape("meta-llama/Llama-3.1-8B-Instruct") is SHAPES["llama-3.1-8b"]
    assert read_shape("deepseek-ai/DeepSeek-R1") is SHAPES["deepseek-v3"]


def test_shape_is_read_from_config_file(tmp_path):
    config = {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = read_shape(tmp_path)
    assert (shape.head_dim, shape.max_positions, shape.published) == (128, 8192, "bfloat16")
    assert shape.parameters == SHAPES["llama-3.1-8b"].parameters


def test_mixture_shape_is_read_from_config_file(tmp_path):
    config = {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "vocab_size": 129280,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "quantization_config": {"quant_method": "fp8"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = read_shape(tmp_path)
    assert shape.published == "fp8"
    assert shape.parameters == SHAPES["deepseek-v3"].parameters
    assert shape.active_parameters == SHAPES["deepseek-v3"].active_parameters


def test_shape_errors_name_missing_model_or_field(tmp_path):
    with pytest.raises(UnknownModel, match=r"not one of llama-3\.1-8b"):
        read_shape("no-such-model")
    (tmp_path / "config.json").write_text('{"hidden_size": 1, "num_attention_heads": 1}')
    with pytest.raises(UnknownModel, match="has no '"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnknownModel, match=r"config\.json"):
        read_shape(tmp_path)


def test_fp8_peak_is_twice_bf16_and_gpus_without_nvlink_use_pcie():
    assert GPU_KINDS["a100"].fp8_flops is None
    assert GPU_KINDS["l4"].link_bytes_per_s is None
    assert GPU_KINDS["l4"].peer_bytes_per_s == GPU_KINDS["l4"].pcie_bytes_per_s
    for gpu in map(GPU_KINDS.get, ("l4", "a100", "h100", "h200")):
        assert gpu.fp8_flops is None or gpu.fp8_flops == pytest.approx(2 * gpu.bf16_flops, rel=0.001)
