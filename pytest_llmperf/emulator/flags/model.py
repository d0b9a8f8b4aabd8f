"""The model of a command line."""

from __future__ import annotations

from pytest_llmperf.emulator.cost.shape import ModelShape, UnknownModel, read_shape
from pytest_llmperf.emulator.flags.parser import StartError


def served_shape(model: str, quantization: str | None) -> ModelShape:
    """The shape of a model that is served with the flag `quantization`.

    Raises:
        StartError: the model is unknown, or it is published with quantised weights and the flag names another format.
    """
    try:
        shape = read_shape(model)
    except UnknownModel as error:
        raise StartError(str(error)) from None
    if shape.packed is not None and quantization is not None:
        raise StartError(
            f"Quantization method specified in the model config ({shape.packed.method}) does not match the "
            f"quantization method specified in the `quantization` argument ({quantization})."
        )
    return shape
