"""The shipped numbers, and what they say of themselves."""

import hashlib
from pathlib import Path

import pytest

from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.cost.coefficients import coefficients_for, family_of, numbers_of, stored
from pytest_llmperf.emulator.cost.shape import read_shape
from pytest_llmperf.kinds import GPU_KINDS

DATA = Path(__file__).parents[4] / "scripts" / "data" / "served_h100_h200.csv"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("gpu", ["l4", "a100", "h100", "h200", "b200", "mi300x"])
def test_coefficient_provenance_names_extrapolated_gpus(engine, gpu):
    coefficients = coefficients_for(engine, GPU_KINDS[gpu])
    extrapolated = f"data sheet only: not fitted on {gpu}"
    assert coefficients.provenance.startswith("fitted on" if gpu in ("h100", "h200") else extrapolated)


def test_coefficients_were_fitted_on_stored_data():
    assert stored()["provenance"]["sha256"] == hashlib.sha256(DATA.read_bytes()).hexdigest()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_fitted_shares_of_peak_are_at_most_1(engine):
    numbers = stored()["engines"][engine]
    for name, value in numbers.items():
        assert value > 0
        if "bandwidth" in name or name in ("matrix", "matrix_fp8", "attention"):
            assert value <= 1, name


def test_families_of_mixtures_replace_only_coefficients_of_experts():
    for family, numbers in stored()["families"].items():
        assert all(name.startswith("expert_") for name in numbers), family
        engine = family.partition(" ")[0]
        shipped = numbers_of(coefficients_for(engine, GPU_KINDS["h200"], family))
        assert shipped == numbers_of(coefficients_for(engine, GPU_KINDS["h200"])) | numbers


@pytest.mark.parametrize(("model", "options", "family"), [
    ("llama-3.1-8b", {}, ""),
    ("mixtral-8x7b", {}, "vllm bfloat16 full"),
    ("qwen3-235b-a22b", {"weights": "fp8", "async_scheduling": False}, "vllm fp8 full sync"),
    ("gpt-oss-120b", {"engine": "sglang"}, "sglang mxfp4 windowed"),
    ("glm-5", {"weights": "fp8"}, "vllm fp8 sparse"),
    ("deepseek-v3", {"weights": "fp8"}, "vllm fp8 latent"),
    ("qwen3.5-397b-a17b", {"weights": "fp8"}, "vllm fp8 linear"),
])
def test_family_is_engine_format_attention_and_scheduling(model, options, family):
    config = EngineConfig(
        **{"engine": "vllm", "shape": read_shape(model), "gpu": GPU_KINDS["h200"], "max_model_len": 4096,
           "max_num_batched_tokens": 8192, "max_num_seqs": 64, "block_size": 16, "num_blocks": 100} | options
    )
    assert family_of(config) == family


def test_hardware_has_one_value_for_both_engines():
    vllm, sglang = stored()["engines"]["vllm"], stored()["engines"]["sglang"]
    assert vllm.keys() == sglang.keys()
    for name in ("weight_bandwidth", "kv_bandwidth", "matrix", "matrix_fp8", "attention", "allreduce_bandwidth"):
        assert vllm[name] == sglang[name]
