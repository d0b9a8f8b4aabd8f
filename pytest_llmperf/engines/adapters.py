"""The door of engines: the shipped engines and the engines of other packages, by name."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_llmperf.doors import Door
from pytest_llmperf.engines.adapter import EngineAdapter
from pytest_llmperf.engines.control.reader import ServerReader
from pytest_llmperf.engines.endpoint.reader import EndpointReader
from pytest_llmperf.engines.routers.adapter import ROUTERS
from pytest_llmperf.errors import ConfigError, SpecError
from pytest_llmperf.kinds import OTHER_GPU, kind_names
from pytest_llmperf.model.engine import INSTALLATION, Endpoint, EngineSpec

#: lm-evaluation-harness, whose environment the settings name as an engine's.
HARNESS = "lm_eval"

ENGINES = Door[EngineAdapter]("engine", "an EngineAdapter", lambda value: isinstance(value, EngineAdapter), {
    "vllm": "pytest_llmperf.engines.vllm.adapter:VLLM",
    "sglang": "pytest_llmperf.engines.sglang.adapter:SGLANG",
    "transformers": "pytest_llmperf.engines.transformers.adapter:TRANSFORMERS",
})


def adapter_of(engine: str) -> EngineAdapter:
    """The adapter of the engine with this name.

    Raises:
        SpecError: no engine has this name; the message lists the known engines.
        ConfigError: the package that adds the engine cannot be used.
    """
    adapter = ENGINES.get(engine)
    if adapter is None:
        raise SpecError(ENGINES.unknown(engine))
    return adapter


def reader_of(spec: EngineSpec) -> ServerReader:
    """How to talk to a server of this spec.

    Raises:
        SpecError, ConfigError: as in `adapter_of`.
    """
    return EndpointReader(spec.api) if isinstance(spec, Endpoint) else adapter_of(spec.engine)


def package_of(engine: str) -> str:
    """Import name of an engine's Python package: the engine's own name, unless its adapter states another."""
    return (ENGINES[engine].package if engine in ENGINES else "") or engine


def startable() -> list[str]:
    """Names of the engines that a session can start, in alphabetical order."""
    return sorted(ENGINES)


def check_configured(names: Iterable[str]) -> None:
    """Raise ConfigError for settings of unknown engines, installations or hardware kinds.

    Args:
        names: "engine", "engine:installation", and either with "@kind".

    Raises:
        ConfigError: the message lists every wrong name.
    """
    problems = []
    for name in names:
        place, at, kind = name.partition("@")
        engine, colon, installation = place.partition(":")
        if engine not in (*ENGINES, *ROUTERS, HARNESS):
            problems.append(f"{name}: {ENGINES.unknown(engine)}")
        elif colon and not INSTALLATION.fullmatch(installation):
            problems.append(f"{name}: the name of an installation is letters, digits, '.', '_' and '-'.")
        elif at and kind not in (*kind_names(), OTHER_GPU):
            problems.append(f"{name}: {kind!r} is no hardware kind; known: {', '.join(kind_names())}.")
    if problems:
        raise ConfigError("engines: " + " ".join(problems))

