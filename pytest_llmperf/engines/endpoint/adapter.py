"""Reads a service that already runs. The metrics page of the service shows the family of its server."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.reader import ServerReader
from pytest_llmperf.engines.endpoint.metric_families import family_of
from pytest_llmperf.engines.vllm.adapter import VLLM
from pytest_llmperf.model.api import Api
from pytest_llmperf.telemetry.prometheus import Scrape


class EndpointReader(ServerReader):
    """Reads the state of a service that runs already. It never resets the caches of that service.

    Args:
        interface: the API of the service, as the test describes it.
    """

    name = "endpoint"

    def __init__(self, interface: Api) -> None:
        self.interface = interface

    def ready(self, client: httpx.Client) -> bool:  # noqa: ARG002 - other routes than OpenAI's need not exist
        return True

    def counters(self, scrape: Scrape) -> Mapping[str, float]:
        return _names_of(scrape).counters(scrape)

    def gauges(self, scrape: Scrape) -> Mapping[str, float]:
        return _names_of(scrape).gauges(scrape)

    def facts(self, scrape: Scrape) -> Mapping[str, str]:
        return _names_of(scrape).facts(scrape)

    def resolved(self, client: httpx.Client) -> Mapping[str, str]:
        """The configuration of a vLLM server; empty for any other service."""
        return VLLM.resolved(client)


def _names_of(scrape: Scrape) -> ServerReader:
    """The reader for the server family of the page. For an unknown family it reads only the start of the process."""
    family = family_of(scrape)
    return ServerReader() if family is None else family.names
