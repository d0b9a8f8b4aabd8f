"""Where the counters of a service are read: pages of replicas, a headless service, or a Prometheus server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from pytest_llmperf.engines.control.service_url import secret_of_query
from pytest_llmperf.errors import SpecError

PAGE = "/metrics"
DNS = {"dns": "http", "dns+http": "http", "dns+https": "https"}
PROMETHEUS = {"prometheus+http": "http", "prometheus+https": "https"}
MATCH = "match="
_WRITE = ('Write the page of each replica, metrics=["http://HOST:PORT/metrics", …], the name of a headless service, '
          'metrics="dns://NAME:PORT/metrics", or a Prometheus server, '
          "metrics='prometheus+http://HOST:PORT?match={LABEL=\"VALUE\"}'.")


@dataclass(frozen=True, slots=True)
class Page:
    """The metrics page of one replica.

    Args:
        origin: scheme, host and port: "http://10.0.0.5:8000".
        path: path of the page, with its query.
    """

    origin: str
    path: str

    @property
    def name(self) -> str:
        """Name of the replica: host and port, and the path if it is unusual."""
        return self.origin.partition("://")[2] + ("" if self.path == PAGE else self.path)


@dataclass(frozen=True, slots=True)
class HeadlessService:
    """A name in DNS that has one address for each replica.

    Args:
        scheme: "http" or "https".
        host, port: the name, and the port of each replica.
        path: path of each page.
    """

    scheme: str
    host: str
    port: int
    path: str

    def page(self, address: str) -> Page:
        """The page of the replica at an IP address."""
        host = f"[{address}]" if ":" in address else address
        return Page(f"{self.scheme}://{host}:{self.port}", self.path)


@dataclass(frozen=True, slots=True)
class PrometheusQuery:
    """The replicas that a Prometheus server scrapes.

    Args:
        url: URL of the server's HTTP API without /api/v1.
        matchers: label matchers without braces: 'job="vllm"'.
    """

    url: str
    matchers: str


MetricsAddress = Page | HeadlessService | PrometheusQuery


def metrics_addresses(call: str, metrics: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The addresses as a spec stores them; None for the service's own page, and () for no page.

    Args:
        call: how the endpoint was written, for messages.
        metrics: the argument.

    Raises:
        SpecError: an address cannot be read, or is given twice.
    """
    if metrics is None:
        return None
    texts = (metrics,) if isinstance(metrics, str) else metrics
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise SpecError(f"{call}, metrics={metrics!r}): an address must be a text or a list of texts. {_WRITE}")
    for text in texts:
        if "@" in text.partition("?")[0]:  # not shown: what stands before it may be a password
            raise SpecError(f"{call}, metrics=…): an address holds credentials (an @), which would end up in results. "
                            'Leave them out; for a login write metrics_headers_env={"Authorization": "VARIABLE"}.')
        if (secret := secret_of_query(text)) is not None:
            raise SpecError(f"{call}, metrics=…): the query of an address holds a secret ({secret}), which would end "
                            'up in results. Leave it out; write metrics_headers_env={"HEADER": "VARIABLE"}.')
        if (problem := _problem(text)) is not None:
            raise SpecError(f"{call}, metrics={text!r}): {problem} {_WRITE}")
    if len(set(texts)) < len(texts):
        raise SpecError(f"{call}, metrics={list(texts)!r}): an address is given twice. Leave one out.")
    return tuple(texts)


def address_of(text: str) -> MetricsAddress:
    """The address that a valid text is."""
    parts = urlsplit(text)
    path = (parts.path if parts.path.strip("/") else PAGE) + (f"?{parts.query}" if parts.query else "")
    if parts.scheme in DNS:
        scheme = DNS[parts.scheme]
        port = parts.port or (443 if scheme == "https" else 80)
        return HeadlessService(scheme, parts.hostname or "", port, path)
    if parts.scheme in PROMETHEUS:
        url = f"{PROMETHEUS[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}"
        return PrometheusQuery(url, _matchers(parts) or "")
    return Page(f"{parts.scheme}://{parts.netloc}", path)


def _problem(text: str) -> str | None:
    """Why a text is no address; None for an address."""
    try:
        parts = urlsplit(text)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError as error:
        return f"{error}."
    if parts.scheme not in ("http", "https", *DNS, *PROMETHEUS) or not parts.hostname or not port_is_valid:
        return "this is no address of a metrics page."
    if parts.scheme in PROMETHEUS:
        return None if _matchers(parts) else "the label matchers are missing, such as ?match={job=\"vllm\"}."
    return "a fragment has no meaning here." if parts.fragment else None


def _matchers(parts: SplitResult) -> str | None:
    """The label matchers of `?match={…}`; None if the braces or the matchers are missing."""
    selector = unquote(parts.query.removeprefix(MATCH)).strip() if parts.query.startswith(MATCH) else ""
    if not (selector.startswith("{") and selector.endswith("}")):
        return None
    return selector[1:-1].strip().rstrip(",") or None
