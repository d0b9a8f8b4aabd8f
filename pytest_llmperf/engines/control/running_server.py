"""The server that a test sees: `engine`. Read-only; what starts, asks and stops a server is `engines.server`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmperf.engines.server import Server as ServerHandle
from pytest_llmperf.model.engine import EngineSpec


class RunningServer:
    """A running server, as the fixture `engine` gives it to a test. `perf.measure(engine, …)` measures it.

    All attributes are read-only, and none leads to a value that a test could change: several tests share the server.
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: ServerHandle) -> None:
        self._handle = handle

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        return repr(self._handle)

    @property
    def spec(self) -> EngineSpec:
        """The spec of the marker. `perf.measure(engine.spec, …, fresh=True)` starts another server of this spec."""
        return self._handle.requested_spec

    @property
    def url(self) -> str:
        """Address of the server, such as "http://127.0.0.1:8000"."""
        return self._handle.contact.url

    @property
    def model(self) -> str:
        """Model name that requests to this server contain."""
        return self._handle.contact.served_name

    @property
    def start_id(self) -> int:
        """Number of the server start in the session. Runs with equal `start_id` share one server start."""
        return self._handle.start_id

    @property
    def starting_s(self) -> float | None:
        """Seconds from the launch to the first generated token; None for an attached server."""
        return self._handle.unit.starting_s

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the server's processes, LMCache included; empty for an attached server."""
        return self._handle.unit.pids()

    @property
    def facts(self) -> Mapping[str, str]:
        """Version and resolved configuration of the server, such as `facts["block_size"]`."""
        return MappingProxyType(dict(self._handle.facts))

    def counters(self) -> Mapping[str, float]:
        """Read the server's counters now, under names that are equal for all engines. Counters of a service are sums
        over its replicas.

        Raises:
            EngineError: a counter has an impossible value, or the server does not answer.
        """
        return MappingProxyType(dict(self._handle.counters.read()))


def handle_of(engine: RunningServer | ServerHandle | EngineSpec) -> ServerHandle | EngineSpec:
    """The server behind the server that a test sees; a spec remains a spec."""
    return engine._handle if isinstance(engine, RunningServer) else engine


Server = RunningServer  # its public name
