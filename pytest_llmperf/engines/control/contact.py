"""Where a server answers, by what way, and what every request to the server carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.service_url import ServiceUrl, service_url
from pytest_llmperf.engines.endpoint.credentials import sent_secrets
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.load.connection_setup import tls_context
from pytest_llmperf.model.plan import Channel

CONTROL_TIMEOUT_S = 10.0


def channel_of(settings: Settings, url: str, root: Path) -> Channel:
    """The way to an endpoint: plain HTTP, or TLS or a proxy as the settings say; `root` is the project's, for relative
    places.

    Raises:
        ConfigError: the certificates to trust cannot be read.
    """
    proxy = urlsplit(settings.proxy)
    channel = Channel(
        tls=urlsplit(url).scheme == "https",
        tls_verify=settings.tls_verify,
        tls_ca_file=str(root / settings.tls_ca_file) if settings.tls_ca_file else None,
        proxy=(proxy.hostname, proxy.port) if proxy.hostname and proxy.port else None,
    )
    if channel.tls:
        try:
            tls_context(channel)
        except OSError as problem:
            raise ConfigError(f"tls_ca_file = {channel.tls_ca_file!r}: {problem}.") from problem
    return channel


def control_client(
    url: str, channel: Channel, timeout_s: float = CONTROL_TIMEOUT_S, transport: httpx.BaseTransport | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> httpx.Client:
    """An HTTP client for control requests, which are not timed. It ignores the environment's proxy variables.

    Args:
        url: URL of the server.
        channel: TLS and proxy.
        timeout_s: longest time from a request to the last byte of its answer, if the request sets no timeout.
        transport: replaces the socket.
        headers: further headers of every request.
    """
    from pytest_llmperf.engines.control.transports import SocketControl

    return httpx.Client(
        base_url=url,
        timeout=timeout_s,
        trust_env=False,
        headers={"accept-encoding": "identity", **dict(headers)},
        transport=transport or SocketControl(tls_context(channel) if channel.tls else None, channel.proxy),
    )


@dataclass(frozen=True)
class Contact:
    """The way to a server, for timed requests and for control requests.

    Args:
        url: where it answers.
        served_name: the model id to send.
        channel: TLS and proxy, as far as they are needed to reach it.
        headers: further headers of every request, such as an API key.
    """

    url: str
    served_name: str
    channel: Channel = field(default_factory=Channel)
    headers: tuple[tuple[str, str], ...] = ()

    @cached_property
    def service(self) -> ServiceUrl:
        """The paths of its routes."""
        return service_url(self.url)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secret texts in requests. Logs and messages mask these texts, also if an answer of the server has them."""
        return sent_secrets(self.headers)

    @cached_property
    def address(self) -> tuple[str, int]:
        """Host and port of the timed path."""
        url = httpx.URL(self.service.url())
        return url.host, url.port or (443 if self.channel.tls else 80)

    def client(
        self, timeout_s: float = CONTROL_TIMEOUT_S, transport: httpx.BaseTransport | None = None
    ) -> httpx.Client:
        """A client for control requests, as `control_client` makes one."""
        return control_client(self.service.url(), self.channel, timeout_s, transport, self.headers)
