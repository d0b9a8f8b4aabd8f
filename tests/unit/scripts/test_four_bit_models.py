"""The stored 4-bit models hold the weights of suites/models/sums, rounded to the numbers of 4 bits."""

import json
from pathlib import Path

import numpy as np
import pytest

MODELS = Path(__file__).parents[3] / "suites" / "models"
GROUP = 128
#: Largest error in scales: half a number of rounding, and half a number where a rounded zero point cuts a range.
ERROR = {"gptq": 0.55, "awq": 1.05}
PLACES = {"gptq": range(8), "awq": (0, 2, 4, 6, 1, 3, 5, 7)}  # of eight numbers in a word, from the lowest bits


def tensors_of(name):
    content = (MODELS / name / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    described = json.loads(content[8:8 + length])
    described.pop("__metadata__", None)
    return {tensor: array(facts, content[8 + length:]) for tensor, facts in described.items()}


def array(facts, data):
    begin, end = facts["data_offsets"]
    if facts["dtype"] == "BF16":  # the upper half of a float32
        return (np.frombuffer(data[begin:end], "<u2").astype("<u4") << 16).view("<f4").reshape(facts["shape"])
    return np.frombuffer(data[begin:end], "<i4").reshape(facts["shape"])


def numbers_of(words, places):
    """The eight numbers of each word along the last dimension."""
    bits = (words[..., None].astype(np.int64) >> 4 * np.arange(8)) & 15
    return bits[..., np.argsort(places)].reshape(*words.shape[:-1], -1)


@pytest.mark.parametrize("method", list(PLACES))
def test_stored_weights_are_rounded_weights_of_original(method):
    original, quantised = tensors_of("sums"), tensors_of(f"sums-{method}")
    matrices = [name for name in original if name.endswith("proj.weight")]
    assert len(matrices) == 4 * 7
    for name in matrices:
        layer, places = name.removesuffix("weight"), PLACES[method]
        words, scales = quantised[f"{layer}qweight"], quantised[f"{layer}scales"].repeat(GROUP, axis=0)
        numbers = numbers_of(words.T, places).T if method == "gptq" else numbers_of(words, places)
        zeros = numbers_of(quantised[f"{layer}qzeros"], places) + (method == "gptq")  # GPTQ stores them minus 1
        weights = (numbers - zeros.repeat(GROUP, axis=0)) * scales
        assert np.all(np.abs(weights - original[name].T) <= ERROR[method] * scales)
    others = [name for name in original if name not in matrices]
    assert all(np.array_equal(original[name], quantised[name]) for name in others)
