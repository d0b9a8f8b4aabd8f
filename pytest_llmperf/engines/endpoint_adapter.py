"""An OpenAI-compatible server that somebody else runs: measured, never touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_llmperf.engines.adapter import Placement
from pytest_llmperf.engines.openai import COMPLETIONS, completion_body
from pytest_llmperf.engines.vllm_adapter import VllmAdapter
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.request import Request

if TYPE_CHECKING:
    import httpx

    from pytest_llmperf.telemetry.prometheus import Scrape


class EndpointAdapter:
    """Reads vLLM's counters where the server shows them; everything else stays unavailable."""

    name = "endpoint"

    def arguments(self, spec: EngineSpec, placement: Placement) -> list[str]:
        raise NotImplementedError("an endpoint is never started")

    def environment(self, spec: EngineSpec, placement: Placement) -> dict[str, str]:
        raise NotImplementedError("an endpoint is never started")

    def post(self, request: Request, model: str) -> tuple[str, bytes]:
        return COMPLETIONS, completion_body(request, model)

    def reset_cache(self, client: httpx.Client) -> bool:  # noqa: ARG002 - other people's caches are left alone
        return False

    def counters(self, scrape: Scrape) -> Mapping[str, float]:
        return VllmAdapter().counters(scrape)

    def gauges(self, scrape: Scrape) -> Mapping[str, float]:
        return VllmAdapter().gauges(scrape)

    def facts(self, scrape: Scrape) -> Mapping[str, str]:
        return VllmAdapter().facts(scrape)

    def resolved(self, client: httpx.Client) -> Mapping[str, str]:
        return VllmAdapter().resolved(client)
