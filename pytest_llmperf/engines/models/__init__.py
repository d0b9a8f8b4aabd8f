"""Models without a hub: the shapes of real ones with dummy weights, and a tiny one with real random weights."""

from pytest_llmperf.engines.models.registry import SHAPES
from pytest_llmperf.engines.models.resolve import ResolvedModel, resolve_model
from pytest_llmperf.engines.models.shape import Quantization, Shape

__all__ = ["SHAPES", "Quantization", "ResolvedModel", "Shape", "resolve_model"]
