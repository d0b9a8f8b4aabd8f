"""What one engine must tell: arguments, environment, routes and counters. One small class per engine.

Our own engines and engines of other packages are subclasses, which come in through the door `ENGINES`
(engines/adapters.py). A subclass states `api`, `name` and `arguments`, and overrides the defaults that do not fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from pytest_llmperf.engines.control.reader import ServerReader
from pytest_llmperf.engines.lmcache.server import LMCacheServer
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.model.engine import EngineSpec, Flag
from pytest_llmperf.releases.changes import GONE, changes
from pytest_llmperf.releases.stored import description, release, versions
from pytest_llmperf.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Retired:
    """A removed name.

    Args:
        since: first version without the name.
        instead: what a spec says instead, as Python; "" if nothing replaces the name.
    """

    since: str
    instead: str = ""

    def __str__(self) -> str:
        return f" since {self.since} or earlier." + (f" Write {self.instead}." if self.instead else "")


@cache
def retired(engine: str, section: str) -> dict[str, Retired]:
    """Name as a spec writes it → since when a stored version lacks it. A name that came back is left out.

    Args:
        section: "flags" or "variables".

    Returns:
        Nothing for an engine without stored versions.
    """
    if not versions(engine):
        return {}
    stored = [facts for version in versions(engine) if (facts := release(engine, version)) is not None]
    names = {name: Retired(stored[0].version, instead)
             for name, instead in description(engine)["instead"].get(section, {}).items()}
    for older, newer in pairwise(stored):
        names |= {each.python_name: Retired(newer.version, each.instead) for each in changes(older, newer)
                  if each.section == section and each.kind == GONE and "." not in each.name}
    newest = stored[-1].options() if section == "flags" else stored[-1].variables
    return {name: entry for name, entry in names.items()
            if name not in newest and "--" + name.replace("_", "-") not in newest}


@dataclass(frozen=True, slots=True)
class Placement:
    """Everything about one launch that the spec does not say.

    Args:
        kind: hardware kind.
        port: TCP port on 127.0.0.1.
        served_name: nonce under which the server must serve, so that a foreign server on our port is noticed.
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
    lmcache: LMCacheServer | None = None
    root: Path = Path()


class EngineAdapter(ServerReader, ABC):
    """One engine that a session can start. The defaults describe a server that offers OpenAI's completions alone."""

    api: int
    """Version of the doors for which the class was written: 1."""
    package: str = ""
    """Import name of the engine's Python package; "" if this is `name`. Interpreters and unpacked bundles are
    recognised by the package, and the distribution of this name states the version."""
    program: tuple[str, ...] = ()
    """Module of the server, followed by the arguments that the command line always needs; empty for a server that is no
    module of the environment. The module is asked for the options that its argparse parser knows, so that a mistyped
    flag is found before a start."""
    context_flag: str = ""
    """The flag that limits the tokens of a prompt and its answer together; "" without such a flag."""
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
    retired_flags: Mapping[str, Retired] = MappingProxyType({})
    """Flag with underscores → since when a released version lacks the flag, and what replaces it."""
    retired_variables: Mapping[str, Retired] = MappingProxyType({})
    """The same of environment variables."""

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

    def draft_model(self, spec: EngineSpec) -> str | None:  # noqa: ARG002
        """Name of the draft model in the flags; None without a draft model."""
        return None

    def with_draft_model(self, spec: EngineSpec, path: str) -> EngineSpec:  # noqa: ARG002
        """The spec with a path in place of the name that `draft_model` gives."""
        return spec

    def tiers_in_one(self, spec: EngineSpec, keep: str) -> str | None:  # noqa: ARG002
        """Why the engine cannot keep only one of its KV cache and its own host memory; None if it can.

        Args:
            keep: the tier to keep while the other tier is emptied: "engine" or "l1".
        """
        return None

    def share_flags(
        self, spec: EngineSpec, shape: ModelShape | None, kv_bytes: int, share: float  # noqa: ARG002
    ) -> Mapping[str, Flag] | None:
        """Flags of a server whose KV cache has a stated size; None if the engine has no flag for it.

        Args:
            shape: dimensions of the model; None if unknown.
            kv_bytes: of the KV cache on each GPU.
            share: of each GPU's memory that the server may take.
        """
        return None

    def profiler_flags(self, folder: Path, steps: int) -> Mapping[str, Flag] | None:  # noqa: ARG002
        """Flags of a server whose PyTorch profiler can be started by a request; None if the engine has no profiler.

        Args:
            folder: absolute path of the folder for the traces.
            steps: number of engine steps after which a trace ends.
        """
        return None
