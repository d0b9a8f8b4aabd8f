"""Every cause: why a check concluded what it concluded, and why a run is invalid. One class a cause, by domain."""

from pytest_llmperf.results.causes import claims, comparisons, gpus, limits, requests, servers, values

__all__ = ["claims", "comparisons", "gpus", "limits", "requests", "servers", "values"]
