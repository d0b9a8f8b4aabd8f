"""The door of connectors: the shipped connectors and the connectors of other packages, by name."""

from __future__ import annotations

from pytest_llmperf.doors import Door
from pytest_llmperf.engines.connectors.adapter import ConnectorAdapter
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.deployment import Connector

CONNECTORS = Door[ConnectorAdapter](
    "connector", "a ConnectorAdapter", lambda value: isinstance(value, ConnectorAdapter),
    {"nixl": "pytest_llmperf.engines.connectors.nixl:NIXL"},
)


def connector_adapter_of(connector: Connector) -> ConnectorAdapter:
    """The adapter of a connector.

    Raises:
        SpecError: no connector has this name.
        ConfigError: the package that adds the connector cannot be used.
    """
    adapter = CONNECTORS.get(connector.name)
    if adapter is None:
        raise SpecError(CONNECTORS.unknown(connector.name))
    return adapter
