"""The engines that are known, by name."""

from __future__ import annotations

from difflib import get_close_matches

from pytest_llmperf.engines.adapter import Adapter
from pytest_llmperf.engines.endpoint_adapter import EndpointAdapter
from pytest_llmperf.engines.vllm_adapter import VllmAdapter
from pytest_llmperf.errors import SpecError

ADAPTERS: dict[str, Adapter] = {"vllm": VllmAdapter(), "endpoint": EndpointAdapter()}


def adapter_of(engine: str) -> Adapter:
    """The adapter of that name.

    Raises:
        SpecError: there is none; names those that there are.
    """
    if engine in ADAPTERS:
        return ADAPTERS[engine]
    close = get_close_matches(engine, ADAPTERS, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    raise SpecError(f"There is no engine {engine!r}.{meant} Known engines: {', '.join(sorted(ADAPTERS))}.")
