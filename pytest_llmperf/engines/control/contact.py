"""Where a server answers, and what every request to the server carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_llmperf.engines.control.channel import control_client
from pytest_llmperf.engines.control.service_url import ServiceUrl, service_url
from pytest_llmperf.engines.endpoint.credentials import sent_secrets
from pytest_llmperf.model.plan import Channel

if TYPE_CHECKING:
    import httpx

    from pytest_llmperf.engines.control.transports import ControlLimits


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
        """What the server was sent and must not be written down, even where the server repeats it."""
        return sent_secrets(self.headers)

    @cached_property
    def address(self) -> tuple[str, int]:
        """Host and port of the timed path."""
        import httpx

        url = httpx.URL(self.service.url())
        return url.host, url.port or (443 if self.channel.tls else 80)

    def client(
        self, limits: ControlLimits | None = None, transport: httpx.BaseTransport | None = None
    ) -> httpx.Client:
        """A client for control requests, as `control_client` makes one."""
        return control_client(self.service.url(), self.channel, limits, transport, self.headers)
