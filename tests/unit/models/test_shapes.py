"""Shapes against published counts."""

import json
from dataclasses import replace

import pytest

from pytest_llmperf.engines.models.registry import CONFIGS, SHAPES, config_json
from pytest_llmperf.shapes import ModelShape, Quantization

# Totals as the publishers' checkpoints count them (safetensors headers on the model pages).
PUBLISHED_PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen3-8b": 8_190_735_360,
    "phi-4-mini": 3_836_021_760,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED_PARAMETERS.items())
def test_parameter_counts_equal_published_counts(name, parameters):
    assert SHAPES[name].parameters == parameters
    assert SHAPES[name].weight_bytes() == 2 * parameters


@pytest.mark.parametrize(("name", "billions"), [("mixtral-8x7b", 12.9), ("qwen3-30b-a3b", 3.35)])
def test_token_passes_active_experts_of_mixture_only(name, billions):
    """Mistral gives 12.9 and Qwen 3.3 billion active parameters."""
    assert SHAPES[name].active_parameters == pytest.approx(billions * 1e9, rel=0.002)


def test_token_passes_all_parameters_of_dense_models():
    assert all(shape.active_parameters == shape.parameters for shape in SHAPES.values() if shape.experts == 1)


@pytest.mark.parametrize(("name", "kv_bytes"), [
    ("llama-3.1-8b", 128 * 1024), ("llama-3.1-70b", 320 * 1024), ("qwen3-8b", 144 * 1024),
    ("phi-4-mini", 128 * 1024), ("mixtral-8x7b", 128 * 1024), ("qwen3-30b-a3b", 96 * 1024),
    ("llama-3.1-8b-gptq-int4", 128 * 1024), ("llama-3.1-8b-awq-int4", 128 * 1024), ("tiny", 2 * 1024),
])
def test_kv_bytes_per_token_match_architecture(name, kv_bytes):
    assert SHAPES[name].kv_bytes_per_token() == kv_bytes


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda s: s.name)
def test_config_file_matches_shape(shape: ModelShape):
    config = json.loads(config_json(shape))
    assert config["num_hidden_layers"] == shape.layers
    assert config["num_key_value_heads"] == shape.kv_heads
    assert config["num_attention_heads"] * config["head_dim"] == shape.heads * shape.head_dim
    assert config.get("num_local_experts", config.get("num_experts", 1)) == shape.experts
    assert config.get("moe_intermediate_size", config["intermediate_size"]) == shape.intermediate
    assert config.get("num_experts_per_tok", 1) == shape.active_experts
    assert config["vocab_size"] > 9_999  # workloads draw ids up to there


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda s: s.name)
def test_special_tokens_are_outside_token_range_of_workloads(shape: ModelShape):
    for special in (CONFIGS[shape.name][key] for key in ("bos_token_id", "eos_token_id")):
        assert special < shape.vocab
        assert not 1_000 <= special <= 9_999


# Of Llama-3.1-8B: parameters in the matrices of all layers, which GPTQ and AWQ quantise, and in the embedding table.
LAYERS, TABLE = 32 * (2 * 4096 * 40 * 128 + 3 * 4096 * 14336), 128256 * 4096


@pytest.mark.parametrize(("name", "group_bits"), [
    ("llama-3.1-8b-gptq-int4", 128 * 4 + 16),  # 128 weights and their scale
    ("llama-3.1-8b-awq-int4", 128 * 4 + 16 + 4),  # and their zero point
])
def test_int4_layers_are_packed_and_embeddings_take_16_bits(name, group_bits):
    shape, bfloat16 = SHAPES[name], SHAPES["llama-3.1-8b"]
    assert shape.parameters == bfloat16.parameters
    assert shape.weight_bytes() == LAYERS // 128 * group_bits // 8 + 2 * (bfloat16.parameters - LAYERS)
    assert shape.weight_bytes() / 1e9 == pytest.approx(5.7, abs=0.03)
    assert shape.decode_bytes == shape.weight_bytes() - 2 * TABLE


def test_int4_step_of_mixture_reads_only_active_experts():
    mixtral = SHAPES["mixtral-8x7b"]
    int4 = replace(mixtral, quantization=Quantization("gptq", zero_points=False))
    saved = (mixtral.weight_bytes() - int4.weight_bytes()) / (mixtral.decode_bytes - int4.decode_bytes)
    attention, expert = 2 * 4096 * 40 * 128, 3 * 4096 * 14336
    assert saved == pytest.approx((attention + 8 * expert) / (attention + 2 * expert))


def test_int4_configs_have_the_sections_of_checkpoints():
    gptq, awq = (json.loads(config_json(SHAPES[f"llama-3.1-8b-{method}-int4"])) for method in ("gptq", "awq"))
    modules = gptq["quantization_config"].pop("modules_in_block_to_quantize")
    assert gptq["quantization_config"] == {
        "quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False, "true_sequential": True}
    assert awq["quantization_config"] == {
        "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": None}
    # vLLM 0.26.0 quantises no layer with dummy weights unless the section names the modules.
    assert sorted(module.rpartition(".")[2] for group in modules for module in group) == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def test_int4_config_differs_from_bfloat16_by_one_section():
    bfloat16, awq = (json.loads(config_json(SHAPES[name])) for name in ("llama-3.1-8b", "llama-3.1-8b-awq-int4"))
    del awq["quantization_config"]
    assert awq == bfloat16
