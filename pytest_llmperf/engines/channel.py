"""How servers are reached: ours plainly, endpoints with TLS and through a proxy where the settings say so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.load.tls import tls_context
from pytest_llmperf.model.plan import Channel

if TYPE_CHECKING:
    import httpx

CONTROL_TIMEOUT_S = 30.0


def channel_of(settings: Settings, url: str, root: Path) -> Channel:
    """The way to an endpoint; `root` is the project's, for relative places.

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


def control_client(url: str, channel: Channel, transport: httpx.BaseTransport | None = None) -> httpx.Client:
    """For whatever is not timed. A proxy of the environment has no business between us and loopback."""
    import httpx

    return httpx.Client(
        base_url=url,
        timeout=CONTROL_TIMEOUT_S,
        trust_env=False,
        transport=transport,
        verify=tls_context(channel) if channel.tls else True,
        proxy=None if channel.proxy is None else f"http://{channel.proxy[0]}:{channel.proxy[1]}",
    )
