"""What one engine must tell: arguments, environment, routes and counters. One small file per engine.

Adding an engine is writing one class with these members and registering it in `ADAPTERS` (engines/adapters.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_llmperf.engines.environment import Environment
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.models.shape import Shape
from pytest_llmperf.model.engine import EngineSpec, Flag
from pytest_llmperf.model.request import Request

if TYPE_CHECKING:
    import httpx

    from pytest_llmperf.telemetry.prometheus import Scrape


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


class Adapter(Protocol):
    """One engine."""

    name: str
    """Import name of the engine's Python package; interpreters and unpacked bundles are recognised by this name."""
    program: tuple[str, ...]
    """Module of the server, followed by the arguments that the command line always needs; empty for a server that is no
    module of the environment."""
    context_flag: str
    """The flag that limits the tokens of a prompt and its answer together."""
    metrics_route: str
    """HTTP path of the server's Prometheus page."""
    tells_lmcache: bool
    """Whether the engine notifies its LMCache server before it ends. Then only the first process gets the signal and
    ends the other processes itself."""

    sizes_by_free_memory: bool
    """Whether the engine sizes its KV cache by the free GPU memory at its start, so that starts must not overlap."""
    sleep_flags: Mapping[str, Flag]
    """Flags with which a server can release its GPU memory while another server is measured; empty if the engine has
    no such mode."""
    memory_in_log: Mapping[str, str]
    """Regular expressions for the lines of the engine's log that state GPU memory in GiB, under the names "weights",
    "graphs" and "kv". The sizes of one line add up."""

    def arguments(self, spec: EngineSpec, placement: Placement) -> list[str]:
        """The engine's command line after the interpreter or command of its environment.

        Args:
            spec: names the folder of a local draft model.
            placement: port, model and environment of the server.
        """
        ...

    def environment(self, spec: EngineSpec, placement: Placement) -> dict[str, str]:
        """Environment variables to add to the inherited variables. Variables of the spec override them."""
        ...

    def host_variables(self, spec: EngineSpec, placement: Placement) -> tuple[str, ...]:
        """Variables that a machine decides and that change performance; measurements record `host_env.NAME`."""
        ...

    def ready(self, client: httpx.Client) -> bool:
        """Whether the server has finished its own warm-up; the query does not disturb this warm-up."""
        ...

    def post(self, spec: EngineSpec, request: Request, model: str) -> tuple[str, bytes]:
        """HTTP path and JSON body that make the server stream an answer of exactly the asked length."""
        ...

    def reset_cache(self, client: httpx.Client, *, external: bool) -> bool:
        """Empty the prefix cache; False where this server cannot.

        Args:
            external: also empty the engine's own KV cache tiers below GPU memory, if the engine can empty a tier alone.

        Raises:
            EngineError: the server supports the reset, and the reset failed.
        """
        ...

    def share_flags(
        self, spec: EngineSpec, shape: Shape | None, kv_bytes: int, share: float
    ) -> Mapping[str, Flag] | None:
        """Flags of a server whose KV cache has a stated size; None if the engine cannot be told one for this model.

        Args:
            shape: dimensions of the model; None if unknown.
            kv_bytes: of the KV cache on each GPU.
            share: of each GPU's memory that the server may take.
        """
        ...

    def sleep(self, client: httpx.Client) -> None:
        """Release the GPU memory of an idle server, which keeps its weights in host memory.

        Raises:
            EngineError: the server does not sleep.
        """
        ...

    def wake(self, client: httpx.Client) -> None:
        """Take the GPU memory back, so that the server serves again.

        Raises:
            EngineError: the server is not awake.
        """
        ...

    def profiler_flags(self, folder: Path, steps: int) -> Mapping[str, Flag] | None:
        """Flags of a server whose PyTorch profiler can be started by a request; None if the engine has no profiler.

        Args:
            folder: absolute path of the folder for the traces.
            steps: number of engine steps after which a trace ends.
        """
        ...

    def profiler_request(self, folder: Path, steps: int) -> Mapping[str, object]:
        """JSON body of POST /start_profile, which begins a trace of all ranks; arguments as in `profiler_flags`."""
        ...

    def counters(self, scrape: Scrape) -> Mapping[str, float]:
        """Monotonic counters under their canonical names (metrics/server.py); absent where the engine has none."""
        ...

    def gauges(self, scrape: Scrape) -> Mapping[str, float]:
        """Gauges worth following, as far as the engine has them: kv_usage (share), running, waiting (requests).

        Of several data-parallel engines requests are summed, and kv_usage is that of the fullest.
        """
        ...

    def facts(self, scrape: Scrape) -> Mapping[str, str]:
        """What the metrics page says of the server that a comparison depends on (KV blocks, block size, …)."""
        ...

    def resolved(self, client: httpx.Client) -> Mapping[str, str]:
        """The configuration that the server resolved from its flags and defaults; empty if it does not report it.

        `block_size`, `num_gpu_blocks` (metric kv_blocks) and `max_num_batched_tokens` (metric chunk_budget) are
        vLLM's names, and mean the same for every engine.
        """
        ...

    def loaded(self, client: httpx.Client) -> str | None:
        """Path or hub id of the loaded model; None if the server reports no model."""
        ...
