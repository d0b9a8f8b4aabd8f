"""The URL of a service gives the paths of requests, models and metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlsplit

from pytest_llmperf.masking import secret_values

V1 = "/v1"
#: Ends of a full URL, the longer one first → protocol.
_ENDS = {"/chat/completions": "chat", "/completions": "completions", "/responses": "responses"}
_VERSION = re.compile(r"v\d+[a-z\d]*")  # v1, v3, v1beta
_DEPLOYMENTS = "deployments"  # of Azure, whose paths have no version
_SIGNATURES = frozenset({"sig", "signature", "code"})  # secrets in queries that have no telling name
_SAFE = "/%:@!$&'()*+,;=~?"


@dataclass(frozen=True, slots=True)
class ServiceUrl:
    """Where the routes of a service are.

    Args:
        origin: scheme, host and port.
        root: path in front of routes such as /metrics: "" or "/proxy".
        base: path in front of /chat/completions: "/v1", "/v3", "/openai/deployments/gpt".
        query: question mark and query of every request, "" for none.
    """

    origin: str
    root: str
    base: str
    query: str = ""

    def path(self, route: str) -> str:
        """Path and query of a route that starts with /v1 in OpenAI's reference, or of another route of the server."""
        if route.startswith(f"{V1}/"):
            return f"{self.base}{route.removeprefix(V1)}{self.query}"
        return self.root + route

    def url(self, route: str = "") -> str:
        """The URL of a route, as in `path`."""
        return self.origin + self.path(route)


def service_url(url: str) -> ServiceUrl:
    """Where the routes of a service are.

    A full URL of a request names the base. So do a path with a version (/v3, /v1beta/openai) or a deployment, and a URL
    with a query. In any other URL the routes lie below /v1.
    """
    parts = urlsplit(url)
    path, query = (quote(text, safe=_SAFE) for text in (parts.path.rstrip("/"), parts.query))
    segments = path.split("/")
    versions = [place for place, segment in enumerate(segments) if _VERSION.fullmatch(segment)]
    if (end := _end(path)) is not None:
        base = path.removesuffix(end)
    else:
        base = path if versions or query or _DEPLOYMENTS in segments else path + V1
    root = "/".join(segments[: versions[0]]) if versions else base.removesuffix(V1)
    return ServiceUrl(f"{parts.scheme}://{parts.netloc}", root, base, f"?{query}" if query else "")


def shortest(url: str) -> str:
    """The URL without a /v1 and a route that `service_url` adds by itself, so that equal services have equal specs."""
    service = service_url(url)
    root = service.origin + service.root
    return root if service_url(root) == service else url.rstrip("/")


def url_problem(url: str, protocol: str) -> str | None:
    """Why a service cannot be measured there; None if it can."""
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError as error:
        return f"{error}."
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_valid:
        return "this is no http or https URL with a host."
    if parts.fragment:
        return "a fragment has no meaning here."
    if (end := _end(parts.path.rstrip("/"))) is not None and _ENDS[end] != protocol:
        return f'a URL that ends with {end} is of protocol="{_ENDS[end]}", and protocol is "{protocol}". Correct one.'
    return None


def secret_of_query(url: str) -> str | None:
    """Name of a parameter that is a secret; None for a query without one."""
    pairs = parse_qsl(url.partition("?")[2], keep_blank_values=True)
    return next((name for name, value in pairs
                 if name.lower() in _SIGNATURES or secret_values({name: value}, {})), None)


def _end(path: str) -> str | None:
    return next((end for end in _ENDS if path.endswith(end)), None)
