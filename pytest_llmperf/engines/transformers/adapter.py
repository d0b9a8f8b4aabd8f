"""Hugging Face `generate` in static batches, the reference of continuous batching: spec, arguments, counters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pytest_llmperf.engines.adapter import EngineAdapter, Placement
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.json_answers import json_object
from pytest_llmperf.engines.spec import Variable, build_spec, command_line, flags_of
from pytest_llmperf.errors import refuse
from pytest_llmperf.model.engine import EngineSpec, Flag

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


def transformers(
    model: str, *, max_batch_size: int = 8, batch_wait_ms: float = 50, dtype: str = "bfloat16",
    env: Mapping[str, Variable] | None = None,
) -> EngineSpec:  # fmt: skip
    """Describe a server that answers with Hugging Face `generate` in static batches.

    Use it as side B of a claim about continuous batching. The server pads the prompts of a batch to one length and
    computes every row until the longest answer ends. It runs in vLLM's Python environment.

    Args:
        model: a shape name with real weights ("tiny"), a path, or a hub id.
        max_batch_size: most rows of a batch.
        batch_wait_ms: how long a batch waits for its rows, in milliseconds, once the model is free.
        dtype: number format by its PyTorch name.
        env: as of `vllm`.

    Raises:
        SpecError: the model or an argument is not valid.
    """
    refuse(
        (isinstance(max_batch_size, bool) or not isinstance(max_batch_size, int) or max_batch_size < 1,
         f"transformers({model!r}, max_batch_size={max_batch_size!r}): write a whole number of at least "
         "1. No server was started."),
        (isinstance(batch_wait_ms, bool) or not isinstance(batch_wait_ms, int | float) or not batch_wait_ms >= 0,
         f"transformers({model!r}, batch_wait_ms={batch_wait_ms!r}): write a number of milliseconds of "
         "at least 0. No server was started."),
    )
    flags: dict[str, Flag] = {"max_batch_size": max_batch_size, "batch_wait_ms": batch_wait_ms, "dtype": dtype}
    return build_spec("transformers", model, {} if env is None else env, flags)
