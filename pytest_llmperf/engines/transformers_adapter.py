"""Hugging Face `generate` in static batches, the reference of continuous batching: arguments, routes, counters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_llmperf.engines.adapter import Placement
from pytest_llmperf.engines.json_answers import json_object
from pytest_llmperf.engines.models.shape import Shape
from pytest_llmperf.engines.openai import COMPLETIONS, completion_body
from pytest_llmperf.engines.spec import command_line, flags_of
from pytest_llmperf.model.engine import EngineSpec, Flag
from pytest_llmperf.model.request import Request

if TYPE_CHECKING:
    import httpx

    from pytest_llmperf.telemetry.prometheus import Scrape

SERVER = Path(__file__).with_name("static_batching_server.py")
COUNTERS = {
    "prompt_tokens": "static:prompt_tokens_total",
    "generation_tokens": "static:generation_tokens_total",
    "requests_finished": "static:requests_finished_total",
    "engine_steps": "static:steps_total",
    "process_start_time_s": "process_start_time_seconds",
}
GAUGES = {"running": "static:running", "waiting": "static:waiting"}


class TransformersAdapter:
    """A server of ours around `generate`, in the interpreter that has transformers and PyTorch."""

    name = "transformers"
    program: tuple[str, ...] = ()  # a file of ours, whose few flags the spec's builder names
    context_flag = ""  # the model's own positions are the limit
    metrics_route = "/metrics"
    tells_lmcache = False
    sizes_by_free_memory = False
    sleep_flags: Mapping[str, Flag] = MappingProxyType({})
    memory_in_log: Mapping[str, str] = MappingProxyType({})

    def arguments(self, spec: EngineSpec, placement: Placement) -> list[str]:
        defaults: dict[str, object] = {
            "host": "127.0.0.1", "port": placement.port, "served_model_name": placement.served_name,
            "device": "cpu" if placement.kind == "cpu" else "cuda",
        }
        return [str(SERVER), placement.model.path_or_hub_id, *command_line(defaults | flags_of(spec))]

    def environment(self, spec: EngineSpec, placement: Placement) -> dict[str, str]:  # noqa: ARG002 - none of its own
        return {"OMP_NUM_THREADS": "1"} if placement.kind == "cpu" else {}  # as vLLM and SGLang on a CPU

    def host_variables(self, spec: EngineSpec, placement: Placement) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def ready(self, client: httpx.Client) -> bool:  # noqa: ARG002 - it listens when the model is loaded
        return True

    def post(self, spec: EngineSpec, request: Request, model: str) -> tuple[str, bytes]:  # noqa: ARG002
        return COMPLETIONS, completion_body(request, model)

    def reset_cache(self, client: httpx.Client, *, external: bool) -> bool:  # noqa: ARG002
        return True  # it keeps no KV cache beyond a batch

    def share_flags(
        self, spec: EngineSpec, shape: Shape | None, kv_bytes: int, share: float  # noqa: ARG002
    ) -> Mapping[str, Flag] | None:
        return None  # it allocates the KV cache of each batch anew

    def sleep(self, client: httpx.Client) -> None:
        raise NotImplementedError("without sleep_flags no server is asked to sleep")

    wake = sleep

    def profiler_flags(self, folder: Path, steps: int) -> None:  # noqa: ARG002
        return None

    def profiler_request(self, folder: Path, steps: int) -> Mapping[str, object]:
        raise NotImplementedError("without profiler_flags no server is asked for a trace")

    def counters(self, scrape: Scrape) -> Mapping[str, float]:
        values = {name: scrape.total(sample) for name, sample in COUNTERS.items()}
        return {name: value for name, value in values.items() if value is not None}

    def gauges(self, scrape: Scrape) -> Mapping[str, float]:
        values = {name: scrape.total(sample) for name, sample in GAUGES.items()}
        return {name: value for name, value in values.items() if value is not None}

    def facts(self, scrape: Scrape) -> Mapping[str, str]:  # noqa: ARG002 - its configuration has all facts
        return {}

    def resolved(self, client: httpx.Client) -> Mapping[str, str]:
        return {name: str(value) for name, value in json_object(client.get("/facts")).items()}

    def loaded(self, client: httpx.Client) -> str | None:
        listed = json_object(client.get("/v1/models")).get("data")
        roots = [entry.get("root") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        return str(roots[0]) if roots else None
