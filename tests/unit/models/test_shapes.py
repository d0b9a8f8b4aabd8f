"""Shapes against published counts."""

import json

import pytest

from pytest_llmperf.engines.models import SHAPES, Shape
from pytest_llmperf.engines.models.registry import config_json

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
    assert SHAPES[name].weight_bytes == 2 * parameters


@pytest.mark.parametrize(("name", "billions"), [("mixtral-8x7b", 12.9), ("qwen3-30b-a3b", 3.35)])
def test_token_passes_active_experts_of_mixture_only(name, billions):
    """Mistral gives 12.9 and Qwen 3.3 billion active parameters. The router counts for the active experts only."""
    assert SHAPES[name].active_parameters == pytest.approx(billions * 1e9, rel=0.002)


def test_token_passes_all_parameters_of_dense_models():
    assert all(shape.active_parameters == shape.parameters for shape in SHAPES.values() if shape.experts == 1)


@pytest.mark.parametrize(("name", "kv_bytes"), [
    ("llama-3.1-8b", 128 * 1024), ("llama-3.1-70b", 320 * 1024), ("qwen3-8b", 144 * 1024),
    ("phi-4-mini", 128 * 1024), ("mixtral-8x7b", 128 * 1024), ("qwen3-30b-a3b", 96 * 1024),
    ("tiny", 2 * 1024),
])
def test_kv_bytes_per_token_match_architecture(name, kv_bytes):
    assert SHAPES[name].kv_bytes_per_token == kv_bytes


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda s: s.name)
def test_config_file_matches_shape(shape: Shape):
    config = json.loads(config_json(shape))
    assert config["num_hidden_layers"] == shape.layers
    assert config["num_key_value_heads"] == shape.kv_heads
    assert config["num_attention_heads"] * config["head_dim"] == shape.heads * shape.head_dim
    assert config.get("num_local_experts", config.get("num_experts", 1)) == shape.experts
    assert config.get("moe_intermediate_size", config["intermediate_size"]) == shape.intermediate
    assert config.get("num_experts_per_tok", 1) == shape.active_experts
    assert config["vocab_size"] > 9_999  # workloads draw ids up to there


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda s: s.name)
def test_special_tokens_are_outside_token_range_of_workloads(shape: Shape):
    for special in (shape.bos_id, shape.eos_id):
        assert special < shape.vocab
        assert not 1_000 <= special <= 9_999
