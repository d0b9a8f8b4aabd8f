"""Connections to servers: plain HTTP to started servers, and TLS or a proxy to endpoints, as the settings say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.load.connection_setup import tls_context
from pytest_llmperf.model.plan import Channel

if TYPE_CHECKING:
    import httpx

    from pytest_llmperf.engines.control.transports import ControlLimits

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


def control_limits(settings: Settings) -> ControlLimits:
    """How long an answer to a control request may take, as the settings say."""
    from pytest_llmperf.engines.control.transports import ControlLimits

    return ControlLimits(settings.control_timeout_s)


def control_client(
    url: str, channel: Channel, limits: ControlLimits | None = None, transport: httpx.BaseTransport | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> httpx.Client:
    """An HTTP client for control requests, which are not timed. It ignores the environment's proxy variables.

    Args:
        url: URL of the server.
        channel: TLS and proxy.
        limits: limits of each answer; None for the defaults.
        transport: replaces the socket.
        headers: further headers of every request.
    """
    import httpx

    from pytest_llmperf.engines.control.transports import ControlLimits, SocketControl

    limits = limits or ControlLimits()
    over_sockets = SocketControl(limits, tls_context(channel) if channel.tls else None, channel.proxy)
    return httpx.Client(
        base_url=url,
        timeout=limits.timeout_s,
        trust_env=False,
        headers={"accept-encoding": "identity", **dict(headers)},
        transport=over_sockets if transport is None else transport,
    )
