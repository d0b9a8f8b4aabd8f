"""The shipped numbers, and what they say of themselves."""

import hashlib
from pathlib import Path

import pytest

from pytest_llmperf.emulator.cost.coefficients import coefficients_for, stored
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


def test_hardware_has_one_value_for_both_engines():
    vllm, sglang = stored()["engines"]["vllm"], stored()["engines"]["sglang"]
    assert vllm.keys() == sglang.keys()
    for name in ("weight_bandwidth", "kv_bandwidth", "matrix", "matrix_fp8", "attention", "allreduce_bandwidth"):
        assert vllm[name] == sglang[name]
