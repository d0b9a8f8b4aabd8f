"""Models without a hub: the shapes of real ones with dummy weights, and a tiny one with real random weights."""

from pytest_llmperf.engines.models.registry import SHAPES
from pytest_llmperf.engines.models.resolve import ResolvedModel, resolve_model

__all__ = ["SHAPES", "ResolvedModel", "resolve_model"]
