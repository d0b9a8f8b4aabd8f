"""NIXL as a connector of vLLM servers (nixl 1.5.1 with UCX)."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmperf.engines.connectors.adapter import ConnectorAdapter
from pytest_llmperf.model.deployment import Connector
from pytest_llmperf.model.engine import Flag

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
