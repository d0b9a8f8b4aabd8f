"""An OpenAI-compatible server that somebody else runs: measured, never touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmperf.engines.adapter import Placement
from pytest_llmperf.engines.vllm_adapter import VllmAdapter
from pytest_llmperf.model.engine import EngineSpec

if TYPE_CHECKING:
    import httpx


class EndpointAdapter(VllmAdapter):
    """Reads vLLM's counters where the server shows them; everything else stays unavailable."""

    name = "endpoint"

    def arguments(self, spec: EngineSpec, placement: Placement) -> list[str]:
        raise NotImplementedError("an endpoint is never started")

    def environment(self, spec: EngineSpec, placement: Placement) -> dict[str, str]:
        raise NotImplementedError("an endpoint is never started")

    def reset_cache(self, client: httpx.Client, *, external: bool) -> bool:  # noqa: ARG002 - other people's caches
        return False
