"""What one engine must tell: arguments, environment, routes and counters. One small class per engine.

Our own engines and engines of other packages are subclasses, which come in through the door `ENGINES`
(engines/adapters.py). A subclass states `api`, `name` and `arguments`, and overrides the defaults that do not fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from pytest_llmperf.engines.control.json_answers import json_object
from pytest_llmperf.engines.control.openai import PATHS, request_body
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.models.shape import Shape
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.model.api import DEFAULT, Api
from pytest_llmperf.model.engine import EngineSpec, Flag
from pytest_llmperf.model.request import Request
from pytest_llmperf.telemetry.prometheus import START_TIME, Scrape

if TYPE_CHECKING:
    import httpx


OK = 200


class Attached(Protocol):
    """LMCache's server, as an engine's arguments name it."""

    @property
    def port(self) -> int:
        """Of its message queue."""
        ...

    @property
    def config_file(self) -> Path:
        """Names that port for an engine that reads a file."""
        ...


@dataclass(frozen=True, slots=True)
class Placement:
    """Everything about one launch that the spec does not say.

    Args:
        kind: hardware kind.
        port: TCP port on 127.0.0.1.
        served_name: nonce under which the server must serve, so that a stranger on our port is noticed.
        model: what to load.
        environment: where the engine is installed.
        lmcache: the LMCache server that runs for this engine; None: there is none, or it is emulated.
        root: project root, where it runs.
    """

    kind: str
    port: int
    served_name: str
    model: ResolvedModel
    environment: Environment
    lmcache: Attached | None = None
    root: Path = Path()


class EngineAdapter(ABC):
    """One engine. The defaults describe a server that offers OpenAI's completions alone."""

    api: int
    """Version of the doors for which the class was written: 1."""
    name: str
    """The name of the engine in suites, options and settings."""
    package: str = ""
    """Import name of the engine's Python package; "" if this is `name`. Interpreters and unpacked bundles are
    recognised by the package, and the distribution of this name states the version."""
    program: tuple[str, ...] = ()
    """Module of the server, followed by the arguments that the command line always needs; empty for a server that is no
    module of the environment. The module is asked for the options that its argparse parser knows, so that a mistyped
    flag is found before a start."""
    context_flag: str = ""
    """The flag that limits the tokens of a prompt and its answer together; "" without such a flag."""
    interface: Api = DEFAULT
    """How requests are written and answers are read: token ids or text, streams with or without `[DONE]`."""
    lists_models: bool = True
    """Whether /v1/models lists the name under which the server serves. Without this list, the server is ours if the
    process that listens on the port belongs to the launch."""
    metrics_route: str = "/metrics"
    """HTTP path of the server's Prometheus page. A server without the page has no counters."""
    emulated: bool = False
    """Whether the built-in emulator schedules as this engine does."""
    tells_lmcache: bool = False
    """Whether the engine notifies its LMCache server before it ends. Then only the first process gets the signal and
    ends the other processes itself."""
    sizes_by_free_memory: bool = False
    """Whether the engine sizes its KV cache by the free GPU memory at its start, so that starts must not overlap."""
    sleep_flags: Mapping[str, Flag] = MappingProxyType({})
    """Flags with which a server can release its GPU memory while another server is measured; empty if the engine has
    no such mode."""
    memory_in_log: Mapping[str, str] = MappingProxyType({})
    """Regular expressions for the lines of the engine's log that state GPU memory in GiB, under the names "weights",
    "graphs" and "kv". The sizes of one line add up."""
    counter_names: Mapping[str, str] = MappingProxyType({})
    """Canonical name of a counter (metrics/server.py) → name on the metrics page, whose samples add up."""
    gauge_names: Mapping[str, str] = MappingProxyType({})
    """The same of gauges: running, waiting (requests)."""

    @abstractmethod
    def arguments(self, spec: EngineSpec, placement: Placement) -> list[str]:
        """The engine's command line after the interpreter or command of its environment.

        The server must listen on `placement.port` of 127.0.0.1 and serve under the name that `served_name` gives. The
        flags of the spec win over defaults.

        Args:
            spec: names the folder of a local draft model.
            placement: port, model and environment of the server.
        """

    def served_name(self, placement: Placement) -> str:
        """The model name that requests and answers carry: a nonce, unless the server chooses the name itself."""
        return placement.served_name

    def environment(self, spec: EngineSpec, placement: Placement) -> dict[str, str]:  # noqa: ARG002
        """Environment variables to add to the inherited variables. Variables of the spec override them."""
        return {}

    def host_variables(self, spec: EngineSpec, placement: Placement) -> tuple[str, ...]:  # noqa: ARG002
        """Variables that a machine decides and that change performance; measurements record `host_env.NAME`."""
        return ()

    def ready(self, client: httpx.Client) -> bool:
        """Whether the server has finished its own warm-up; the query generates no token."""
        return client.get("/health").status_code == OK

    def post(self, spec: EngineSpec, request: Request, model: str) -> tuple[str, bytes]:  # noqa: ARG002
        """HTTP path and JSON body that make the server stream an answer of exactly the asked length."""
        return PATHS[self.interface.protocol], request_body(request, model, self.interface)

    def reset_cache(self, client: httpx.Client, *, external: bool) -> bool:  # noqa: ARG002
        """Empty the prefix cache; False where this server cannot.

        Args:
            external: also empty the engine's own KV cache tiers below GPU memory, if the engine can empty a tier alone.

        Raises:
            EngineError: the server supports the reset, and the reset failed.
        """
        return False

    def share_flags(
        self, spec: EngineSpec, shape: Shape | None, kv_bytes: int, share: float  # noqa: ARG002
    ) -> Mapping[str, Flag] | None:
        """Flags of a server whose KV cache has a stated size; None if the engine cannot be told one for this model.

        Args:
            shape: dimensions of the model; None if unknown.
            kv_bytes: of the KV cache on each GPU.
            share: of each GPU's memory that the server may take.
        """
        return None

    def sleep(self, client: httpx.Client) -> None:
        """Release the GPU memory of an idle server, which keeps its weights in host memory.

        Raises:
            EngineError: the server does not sleep.
        """
        raise NotImplementedError(f"an adapter with sleep_flags implements sleep: {self.name}")

    def wake(self, client: httpx.Client) -> None:
        """Take the GPU memory back, so that the server serves again.

        Raises:
            EngineError: the server is not awake.
        """
        raise NotImplementedError(f"an adapter with sleep_flags implements wake: {self.name}")

    def profiler_flags(self, folder: Path, steps: int) -> Mapping[str, Flag] | None:  # noqa: ARG002
        """Flags of a server whose PyTorch profiler can be started by a request; None if the engine has no profiler.

        Args:
            folder: absolute path of the folder for the traces.
            steps: number of engine steps after which a trace ends.
        """
        return None

    def profiler_request(self, folder: Path, steps: int) -> Mapping[str, object]:  # noqa: ARG002
        """JSON body of POST /start_profile, which begins a trace of all ranks; arguments as in `profiler_flags`."""
        return {}

    def counters(self, scrape: Scrape) -> Mapping[str, float]:
        """Monotonic counters under their canonical names (metrics/server.py); absent where the engine has none."""
        return scrape.counters({**self.counter_names, START_TIME: "process_start_time_seconds"})

    def gauges(self, scrape: Scrape) -> Mapping[str, float]:
        """Gauges worth following, as far as the engine has them: kv_usage (share), running, waiting (requests).

        Of several data-parallel engines requests are summed, and kv_usage is that of the fullest.
        """
        return scrape.totals(self.gauge_names)

    def facts(self, scrape: Scrape) -> Mapping[str, str]:  # noqa: ARG002
        """What the metrics page says of the server that a comparison depends on (KV blocks, block size, …)."""
        return {}

    def resolved(self, client: httpx.Client) -> Mapping[str, str]:  # noqa: ARG002
        """The configuration that the server resolved from its flags and defaults; empty if it does not report it.

        `block_size`, `num_gpu_blocks` (metric kv_blocks) and `max_num_batched_tokens` (metric chunk_budget) are
        vLLM's names, and mean the same for every engine.
        """
        return {}

    def loaded(self, client: httpx.Client) -> str | None:
        """Path or hub id of the loaded model; None if the server reports no model."""
        listed = json_object(client.get("/v1/models")).get("data") if self.lists_models else None
        roots = [entry.get("root") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        return str(roots[0]) if roots and roots[0] else None
