"""The floor of a decode step, and the datasheets it rests on."""

import pytest

from pytest_llmperf import decode_floor_ms
from pytest_llmperf.emulator.cost.gpu import GPUS
from pytest_llmperf.engines.models import SHAPES
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.datasheet import MEMORY_BANDWIDTH


def test_a_dense_model_is_read_once_but_for_its_embedding():
    # Llama 3.1 8B: 8,030,261,248 parameters, of which 128,256 × 4,096 are the table; two bytes each; 4.8 TB/s.
    assert decode_floor_ms("llama-3.1-8b", "h200") == pytest.approx((8030261248 - 128256 * 4096) * 2 / 4.8e12 * 1e3)
    assert decode_floor_ms("llama-3.1-8b", "h200", gpus=2) == pytest.approx(
        decode_floor_ms("llama-3.1-8b", "h200") / 2
    )


def test_a_tied_table_is_the_output_projection():
    assert SHAPES["phi-4-mini"].decode_bytes == SHAPES["phi-4-mini"].weight_bytes


def test_of_a_mixture_the_active_experts_count():
    mixture = SHAPES["mixtral-8x7b"]
    assert mixture.weight_bytes / mixture.decode_bytes == pytest.approx(3.66, abs=0.01)


def test_both_tables_of_datasheets_agree():
    """The emulator keeps its own, because a slip in a common one would hide from every emulated check."""
    assert {name: gpu.bandwidth_bytes_per_s for name, gpu in GPUS.items()} == MEMORY_BANDWIDTH


@pytest.mark.parametrize("arguments", [
    ("llama-3.1-8b", "cpu", 1), ("nobody", "h200", 1), ("tiny", "h200", 0), ("tiny", "h200", "2"),
    ("tiny", "h200", None), (["tiny"], "h200", 1), ("tiny", {"h200": 1}, 1), (None, None, 1),
])
def test_what_is_not_known_is_refused(arguments):
    model, kind, gpus = arguments
    with pytest.raises(SpecError, match="decode_floor_ms"):
        decode_floor_ms(model, kind, gpus=gpus)
