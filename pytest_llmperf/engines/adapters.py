"""The registry of engine adapters by engine name, and the adapter of attached servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pytest_llmperf.engines.adapter import Adapter, Placement
from pytest_llmperf.engines.metric_families import PageNames, PlainNames, family_of
from pytest_llmperf.engines.openai import PATHS, request_body
from pytest_llmperf.engines.sglang_adapter import SglangAdapter
from pytest_llmperf.engines.transformers_adapter import TransformersAdapter
from pytest_llmperf.engines.vllm_adapter import VllmAdapter
from pytest_llmperf.errors import ConfigError, SpecError
from pytest_llmperf.kinds import OTHER_GPU, kind_names
from pytest_llmperf.model.engine import INSTALLATION, EngineSpec
from pytest_llmperf.model.request import Request

if TYPE_CHECKING:
    import httpx

    from pytest_llmperf.telemetry.prometheus import Scrape


class EndpointAdapter(VllmAdapter):
    """An attached server, which is never started or reset. Its metrics page shows the family of the server."""

    name = "endpoint"

    def arguments(self, spec: EngineSpec, placement: Placement) -> list[str]:
        raise NotImplementedError("an endpoint is never started")

    def environment(self, spec: EngineSpec, placement: Placement) -> dict[str, str]:
        raise NotImplementedError("an endpoint is never started")

    def post(self, spec: EngineSpec, request: Request, model: str) -> tuple[str, bytes]:
        return PATHS[spec.api.protocol], request_body(request, model, spec.api)

    def reset_cache(self, client: httpx.Client, *, external: bool) -> bool:  # noqa: ARG002 - other people's caches
        return False

    def counters(self, scrape: Scrape) -> Mapping[str, float]:
        return _names_of(scrape).counters(scrape)

    def gauges(self, scrape: Scrape) -> Mapping[str, float]:
        return _names_of(scrape).gauges(scrape)

    def facts(self, scrape: Scrape) -> Mapping[str, str]:
        return _names_of(scrape).facts(scrape)


def _names_of(scrape: Scrape) -> PageNames:
    """The names of the page's family; of an unknown family only the start of the process is read."""
    family = family_of(scrape)
    return PlainNames({}, {}) if family is None else family.names


#: lm-evaluation-harness, whose environment the settings name as an engine's.
HARNESS = "lm_eval"

ADAPTERS: dict[str, Adapter] = {
    "vllm": VllmAdapter(), "sglang": SglangAdapter(), "transformers": TransformersAdapter(),
    "endpoint": EndpointAdapter(),
}  # fmt: skip


def adapter_of(engine: str) -> Adapter:
    """The adapter of the engine with this name.

    Raises:
        SpecError: no engine has this name; the message lists the known engines.
    """
    if engine not in ADAPTERS:
        raise SpecError(_unknown(engine))
    return ADAPTERS[engine]


def startable() -> list[str]:
    """Names of the engines that a session can start, in alphabetical order; an endpoint is not startable."""
    return sorted(ADAPTERS.keys() - {EndpointAdapter.name})


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
        if engine not in (*ADAPTERS, HARNESS):
            problems.append(f"{name}: {_unknown(engine)}")
        elif colon and not INSTALLATION.fullmatch(installation):
            problems.append(f"{name}: the name of an installation is letters, digits, '.', '_' and '-'.")
        elif at and kind not in (*kind_names(), OTHER_GPU):
            problems.append(f"{name}: {kind!r} is no hardware kind; known: {', '.join(kind_names())}.")
    if problems:
        raise ConfigError("engines: " + " ".join(problems))


def _unknown(engine: str) -> str:
    """The message for an unknown engine name, with the most similar known name."""
    close = get_close_matches(engine, ADAPTERS, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    return f"There is no engine {engine!r}.{meant} Known engines: {', '.join(sorted(ADAPTERS))}."
