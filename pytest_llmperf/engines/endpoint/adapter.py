"""How to talk to a service that already runs. Its metrics page shows the family of the server."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.reader import ServerReader
from pytest_llmperf.engines.endpoint.metric_families import family_of
from pytest_llmperf.engines.vllm.adapter import VLLM
from pytest_llmperf.model.api import Api
from pytest_llmperf.telemetry.prometheus import Scrape


class EndpointReader(ServerReader):
    """Reads and loads a service, and never resets the caches of other people.

    Args:
        interface: as the test describes the service.
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
    """The names of the page's family; of an unknown family only the start of the process is read."""
    family = family_of(scrape)
    return ServerReader() if family is None else family.names
