"""Reads the metrics pages of a service's replicas, wherever `metrics=` of the endpoint says that they are."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmperf.clock import Clock
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.json_answers import json_object
from pytest_llmperf.engines.endpoint.metrics_address import HeadlessService, Page, PrometheusQuery, address_of
from pytest_llmperf.engines.endpoint.prometheus_server import PrometheusReader
from pytest_llmperf.engines.endpoint.reader import copied_name, copy_remedy, family_of, models_of
from pytest_llmperf.errors import EngineError, MetricUnavailable, WrongServer
from pytest_llmperf.telemetry.prometheus import ACCEPT, Scrape, parse
from pytest_llmperf.telemetry.replicas import PagesReading


@dataclass(frozen=True, slots=True)
class DeploymentPages:
    """Reads the metrics page of each replica that this session started.

    Args:
        pages: name of a replica → the client that reaches the replica, and the path of its page. The clients belong to
            the servers.
    """

    pages: Mapping[str, tuple[httpx.Client, str]]

    def read(self, *, fresh: bool = True) -> PagesReading:  # noqa: ARG002 - each page is of this moment
        """All pages, read now."""
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


VERSION_ROUTES = ("/version", "/server_info", "/info")  # of vLLM, SGLang and TGI
ClientOf = Callable[[str], "httpx.Client"]
Resolve = Callable[[str, int], list[str]]


def ip_addresses(host: str, port: int) -> list[str]:
    """Every A and AAAA record of a name.

    Raises:
        OSError: the name has none.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in addresses})


class ReplicaPages:
    """The metrics pages of all replicas.

    Args:
        addresses: valid addresses, see `metrics_address`.
        client_of: gives the HTTP client for an origin or URL.
        clock: what waiting for a scrape is measured by.
        resolve: gives the IP addresses of a name and port.
    """

    def __init__(
        self, addresses: Sequence[str], client_of: ClientOf, clock: Clock, resolve: Resolve = ip_addresses
    ) -> None:
        self.addresses = tuple(addresses)
        self._client_of = client_of
        self._resolve = resolve
        self._clients: dict[str, httpx.Client] = {}
        self._pages: dict[str, Page] = {}
        parsed = [address_of(text) for text in addresses]
        self._listed = [address for address in parsed if isinstance(address, Page)]
        self._names = [address for address in parsed if isinstance(address, HeadlessService)]
        self._servers = [PrometheusReader(query, self._client(query.url), clock) for query in parsed
                         if isinstance(query, PrometheusQuery)]

    def read(self, *, fresh: bool = True) -> PagesReading:
        """Every page now. Names are resolved anew, so a new replica is found.

        Args:
            fresh: wait until a Prometheus server has scraped every replica after this call.

        Raises:
            EngineError: a Prometheus server does not answer the query.
        """
        pages: dict[str, Scrape] = {}
        silent: dict[str, str] = {}
        for page in self._all_pages(silent):
            self._pages[page.name] = page
            try:
                pages[page.name] = self._page(page)
            except EngineError as problem:
                silent[page.name] = problem.message
        for server in self._servers:
            reading = server.read(fresh=fresh)
            pages |= reading.pages
            silent |= reading.silent
        return PagesReading(pages, silent)

    def check(self) -> None:
        """Refuse a service whose replicas cannot be told apart from each other by their counters, or are not equal.

        Raises:
            EngineError: a page cannot be read, or there is no replica.
            WrongServer: replicas serve different models, or run different versions.
        """
        if not self.addresses:
            return
        reading = self.read(fresh=False)
        if reading.silent:
            name, reason = next(iter(reading.silent.items()))
            raise EngineError(
                f"The metrics page of {name} cannot be read: {reason}. Nothing was measured. Start the replica, or "
                f"correct metrics={list(self.addresses)!r} of the endpoint."
            )
        if not reading.pages:
            raise EngineError(f"No replica has an address in metrics={list(self.addresses)!r}. Nothing was measured. "
                              "Start a replica, or correct metrics=.")
        for name, page in reading.pages.items():
            if (copied := copied_name(page)) is not None:
                raise EngineError(f"The metrics page of {name} {copy_remedy(copied)} Nothing was measured.")
        pages = {name: page for name, page in reading.pages.items() if family_of(page) is not None}
        models = {name: ", ".join(sorted(models)) for name, page in pages.items() if (models := models_of(page))}
        self._require_equal(models, "serve different models")
        self._require_equal(dict(self._versions()), "run different versions")

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()

    def _all_pages(self, silent: dict[str, str]) -> Iterator[Page]:
        yield from self._listed
        for service in self._names:
            try:
                yield from map(service.page, self._resolve(service.host, service.port))
            except OSError as problem:
                silent[service.host] = f"the name has no address ({problem.strerror or problem})"

    def _page(self, page: Page) -> Scrape:
        try:
            response = self._client(page.origin).get(page.path, headers=ACCEPT)
        except httpx.HTTPError as problem:
            raise EngineError(f"{type(problem).__name__}: {problem}") from problem
        if response.status_code != 200:
            raise EngineError(f"{page.path} answered {response.status_code}")
        try:
            return parse(response.text)
        except MetricUnavailable as problem:
            raise EngineError(str(problem)) from problem

    def _versions(self) -> Iterator[tuple[str, str]]:
        """Replica and version, as far as a replica says its version beside its page."""
        for name, page in self._pages.items():
            for route in VERSION_ROUTES:
                try:
                    version = json_object(self._client(page.origin).get(route)).get("version")
                except httpx.HTTPError:
                    break
                if version is not None:
                    yield name, str(version)
                    break

    def _require_equal(self, values: Mapping[str, str], difference: str) -> None:
        """Raise WrongServer that names two replicas with different values."""
        if len(set(values.values())) < 2:
            return
        name, value = next(iter(values.items()))
        other, other_value = next(item for item in values.items() if item[1] != value)
        raise WrongServer(
            f"The replicas {difference}: {name} {value}, {other} {other_value}. Nothing was measured, because an "
            "answer does not say which replica gave it. Make the replicas equal, or measure each at its own address."
        )

    def _client(self, origin: str) -> httpx.Client:
        if origin not in self._clients:
            self._clients[origin] = self._client_of(origin)
        return self._clients[origin]
