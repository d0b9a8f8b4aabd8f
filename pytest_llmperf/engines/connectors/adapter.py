"""What one connector must tell: flags and variables of each server. One small class per connector.

Our own connectors and connectors of other packages are subclasses, which come in through the door `CONNECTORS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmperf.doors import Door
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.deployment import Connector
from pytest_llmperf.model.engine import Flag


class ConnectorAdapter(ABC):
    """One connector with which a session can start a pool of prefill servers and a pool of decode servers."""

    api: int
    """Version of the doors for which the class was written: 1."""
    name: str
    """The name in messages and conditions."""
    engines: tuple[str, ...]
    """Engines that have the connector."""
    package: str = ""
    """Import name of the Python package that the engine's environment needs beside the engine; "" for none."""
    equal_flags: tuple[str, ...] = ()
    """Flags that must be equal in both pools, because the connector copies blocks as they are."""
    emulated_bytes_per_s: float
    """Rate at which the emulator moves KV cache, unless the GPUs' link is slower."""

    @abstractmethod
    def flags(self, pool: str, kind: str) -> Mapping[str, Flag]:
        """The engine's flags that use the connector.

        Args:
            pool: "prefill" or "decode".
            kind: hardware kind of the server.
        """

    def variables(self, port: int) -> Mapping[str, str]:  # noqa: ARG002
        """Environment variables of one server, which specs must leave out.

        Args:
            port: free TCP port on 127.0.0.1, for the connector's own messages.
        """
        return MappingProxyType({})


CONNECTORS = Door[ConnectorAdapter](
    "connector", "a ConnectorAdapter", lambda value: isinstance(value, ConnectorAdapter),
    {"nixl": "pytest_llmperf.engines.connectors.adapter:NIXL"},
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


ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL"


class Nixl(ConnectorAdapter):
    """The decode server reads blocks out of the prefill server's memory: over NVLink, PCIe, a network, or shared memory
    of a CPU."""

    api, name, package = 1, "nixl", "nixl"
    engines = ("vllm",)
    equal_flags = ("block_size", "kv_cache_dtype", "dtype")
    emulated_bytes_per_s = 46e9  # 2 × H100 of one host: 519 MB in 11.2 ms

    def flags(self, pool: str, kind: str) -> Mapping[str, Flag]:
        buffers = {"kv_buffer_device": "cpu"} if kind == "cpu" else {}
        return {"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": ROLES[pool], **buffers}}

    def variables(self, port: int) -> Mapping[str, str]:
        return {f"{SIDE_CHANNEL}_HOST": "127.0.0.1", f"{SIDE_CHANNEL}_PORT": str(port)}


NIXL = Nixl()


def nixl() -> Connector:
    """Describe NIXL, which moves KV cache between vLLM servers. Each vLLM environment needs `pip install nixl`."""
    return Connector("nixl")
