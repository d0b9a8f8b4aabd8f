"""The metrics pages of the servers of a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.errors import MetricUnavailable
from pytest_llmperf.telemetry.prometheus import ACCEPT, Scrape, parse
from pytest_llmperf.telemetry.replicas import PagesReading


@dataclass(frozen=True, slots=True)
class NumberedPages:
    """Reads the page of each replica.

    Args:
        pages: name of a replica → the client that reaches the replica, and the path of its page. The clients belong to
            the servers.
    """

    pages: Mapping[str, tuple[httpx.Client, str]]

    def read(self, *, fresh: bool = True) -> PagesReading:  # noqa: ARG002 - each page is of this moment
        """Every page now."""
        scrapes: dict[str, Scrape] = {}
        silent: dict[str, str] = {}
        for name, (client, path) in self.pages.items():
            try:
                response = client.get(path, headers=ACCEPT)
                response.raise_for_status()
                scrapes[name] = parse(response.text)
            except (httpx.HTTPError, MetricUnavailable) as problem:
                silent[name] = f"{type(problem).__name__}: {problem}"
        return PagesReading(scrapes, silent)

    def check(self) -> None:
        """Nothing to do: the session started all replicas from one spec."""

    def close(self) -> None:
        """Nothing to do: the servers close their clients."""
