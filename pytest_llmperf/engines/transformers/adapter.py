"""Hugging Face `generate` in static batches, the reference of continuous batching: arguments, routes, counters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pytest_llmperf.engines.adapter import EngineAdapter, Placement
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.json_answers import json_object
from pytest_llmperf.engines.spec import command_line, flags_of
from pytest_llmperf.model.engine import EngineSpec

SERVER = Path(__file__).with_name("server.py")


class TransformersAdapter(EngineAdapter):
    """A server of ours around `generate`, in the interpreter that has transformers and PyTorch."""

    api = 1
    name = "transformers"
    counter_names = MappingProxyType({
        "prompt_tokens": "static:prompt_tokens_total",
        "generation_tokens": "static:generation_tokens_total",
        "requests_finished": "static:requests_finished_total",
        "engine_steps": "static:steps_total",
    })
    gauge_names = MappingProxyType({"running": "static:running", "waiting": "static:waiting"})

    def arguments(self, spec: EngineSpec, placement: Placement) -> list[str]:
        defaults: dict[str, object] = {
            "host": "127.0.0.1", "port": placement.port, "served_model_name": placement.served_name,
            "device": "cpu" if placement.kind == "cpu" else "cuda",
        }
        return [str(SERVER), placement.model.path_or_hub_id, *command_line(defaults | flags_of(spec))]

    def environment(self, spec: EngineSpec, placement: Placement) -> dict[str, str]:  # noqa: ARG002 - none of its own
        return {"OMP_NUM_THREADS": "1"} if placement.kind == "cpu" else {}  # as vLLM and SGLang on a CPU

    def ready(self, client: httpx.Client) -> bool:  # noqa: ARG002 - it listens when the model is loaded
        return True

    def reset_cache(self, client: httpx.Client, *, external: bool) -> bool:  # noqa: ARG002
        return True  # it keeps no KV cache beyond a batch

    def resolved(self, client: httpx.Client) -> Mapping[str, str]:
        return {name: str(value) for name, value in json_object(client.get("/facts")).items()}


TRANSFORMERS = TransformersAdapter()
