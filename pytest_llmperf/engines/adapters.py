"""The engines that are known, by name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from pytest_llmperf.engines.adapter import Adapter
from pytest_llmperf.engines.endpoint_adapter import EndpointAdapter
from pytest_llmperf.engines.sglang_adapter import SglangAdapter
from pytest_llmperf.engines.vllm_adapter import VllmAdapter
from pytest_llmperf.errors import ConfigError, SpecError
from pytest_llmperf.model.engine import INSTALLATION
from pytest_llmperf.telemetry.hardware import KINDS, OTHER_GPU

ADAPTERS: dict[str, Adapter] = {"vllm": VllmAdapter(), "sglang": SglangAdapter(), "endpoint": EndpointAdapter()}


def adapter_of(engine: str) -> Adapter:
    """The adapter of that name.

    Raises:
        SpecError: there is none; names those that there are.
    """
    if engine not in ADAPTERS:
        raise SpecError(_unknown(engine))
    return ADAPTERS[engine]


def startable() -> list[str]:
    """Those that we start, in alphabetical order: an endpoint is somebody else's."""
    return sorted(ADAPTERS.keys() - {EndpointAdapter.name})


def check_configured(names: Iterable[str]) -> None:
    """Refuse settings for an engine that there is not: they would be ignored.

    Args:
        names: "engine", "engine:installation", and either with "@kind".

    Raises:
        ConfigError: naming every wrong one.
    """
    problems = []
    for name in names:
        place, at, kind = name.partition("@")
        engine, colon, installation = place.partition(":")
        if engine not in ADAPTERS:
            problems.append(f"{name}: {_unknown(engine)}")
        elif colon and not INSTALLATION.fullmatch(installation):
            problems.append(f"{name}: the name of an installation is letters, digits, '.', '_' and '-'.")
        elif at and kind not in (*KINDS, OTHER_GPU):
            problems.append(f"{name}: {kind!r} is no hardware kind; known: {', '.join(KINDS)}.")
    if problems:
        raise ConfigError("engines: " + " ".join(problems))


def _unknown(engine: str) -> str:
    """There is no such engine, and which one may be meant."""
    close = get_close_matches(engine, ADAPTERS, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    return f"There is no engine {engine!r}.{meant} Known engines: {', '.join(sorted(ADAPTERS))}."
