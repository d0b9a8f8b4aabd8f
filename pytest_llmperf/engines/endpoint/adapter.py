"""The adapter of a server that is already running: read and loaded, never started or reset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_llmperf.engines.adapter import Placement
from pytest_llmperf.engines.control.openai import PATHS, request_body
from pytest_llmperf.engines.endpoint.metric_families import PageNames, PlainNames, family_of
from pytest_llmperf.engines.vllm.adapter import VllmAdapter
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.request import Request

if TYPE_CHECKING:
    import httpx

    from pytest_llmperf.telemetry.prometheus import Scrape


class EndpointAdapter(VllmAdapter):
    """An attached server, which is never started or reset. Its metrics page shows the family of the server."""

    name = "endpoint"

    def arguments(self, spec: EngineSpec, placement: Placement) -> list[str]:
        raise NotImplementedError("an endpoint is never started")

    def environment(self, spec: EngineSpec, placement: Placement) -> dict[str, str]:
        raise NotImplementedError("an endpoint is never started")

    def post(self, spec: EngineSpec, request: Request, model: str) -> tuple[str, bytes]:
        return PATHS[spec.api.protocol], request_body(request, model, spec.api)

    def reset_cache(self, client: httpx.Client, *, external: bool) -> bool:  # noqa: ARG002 - other people's caches
        return False

    def counters(self, scrape: Scrape) -> Mapping[str, float]:
        return _names_of(scrape).counters(scrape)

    def gauges(self, scrape: Scrape) -> Mapping[str, float]:
        return _names_of(scrape).gauges(scrape)

    def facts(self, scrape: Scrape) -> Mapping[str, str]:
        return _names_of(scrape).facts(scrape)


def _names_of(scrape: Scrape) -> PageNames:
    """The names of the page's family; of an unknown family only the start of the process is read."""
    family = family_of(scrape)
    return PlainNames({}, {}) if family is None else family.names


ENDPOINT = EndpointAdapter()
