"""Every cause: why a check concluded what it concluded, and why a run is invalid. One class a cause, by domain."""

from pytest_llmperf.results.causes import comparisons, limits, runs

__all__ = ["comparisons", "limits", "runs"]
