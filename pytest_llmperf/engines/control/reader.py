"""How to talk to a running server: routes, bodies, counters. An engine's adapter also says how to start one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.json_answers import json_list
from pytest_llmperf.model.api import DEFAULT, FORCING, STOPPING, Api
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.request import Request
from pytest_llmperf.telemetry.prometheus import START_TIME, Scrape

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "responses": "/v1/responses"}
COMPLETIONS = PATHS["completions"]
#: OpenAI keeps each response for a month unless a request forbids it.
_NOT_STORED = {"store": False}


def completion_body(request: Request, model: str) -> bytes:
    """JSON body of a streamed completion of exactly `request.output_tokens` tokens.

    Args:
        request: the request, with token ids or a text as its prompt.
        model: model name of the server.
    """
    return request_body(request, model, DEFAULT)


def request_body(request: Request, model: str, api: Api) -> bytes:
    """JSON body of a request.

    Sampling is greedy, so that the two sides of a comparison generate equal tokens. The usage in each chunk is the
    cheapest way to count the tokens of the chunk.

    Args:
        request: with a text prompt if the interface takes text only, see `Server.as_sent`.
    """
    body: dict[str, object] = {"model": model, **_prompt(request, api), _length_field(api): request.output_tokens}
    if api.dialect == "vllm":
        forcing: dict[str, object] = {"min_tokens": request.output_tokens, "ignore_eos": True}
        stops = not set(STOPPING).isdisjoint(dict(api.fields))  # vLLM ignores a stop before `min_tokens`
        body |= {name: forcing[name] for name in FORCING[api.protocol] if not (stops and name == "min_tokens")}
        if request.answer_used and isinstance(request.prompt, tuple):
            body["return_token_ids"] = True
    body |= {"temperature": 0, "stream": api.stream}
    if api.protocol == "responses":
        body |= _NOT_STORED
    elif api.stream and api.dialect != "basic":
        body["stream_options"] = {"include_usage": True} | (
            {"continuous_usage_stats": True} if api.dialect == "vllm" else {})
    body |= {name: json.loads(value) for name, value in api.fields}
    removed = {name for name, value in api.fields if value == "null"}
    return json.dumps({name: value for name, value in body.items() if name not in removed},
                      separators=(",", ":")).encode()


def _prompt(request: Request, api: Api) -> dict[str, object]:
    if api.protocol == "chat":
        return {"messages": [{"role": "user", "content": request.prompt}]}
    if api.protocol == "responses" and (request.continues or request.answer_used):
        return {"input": [{"role": "user", "content": request.prompt}]}
    return {"input" if api.protocol == "responses" else "prompt": request.prompt}


def _length_field(api: Api) -> str:
    if api.protocol == "responses":
        return "max_output_tokens"
    return "max_completion_tokens" if api.protocol == "chat" and api.dialect == "openai" else "max_tokens"


OK = 200


class ServerReader:
    """What is particular to the servers of one engine. The defaults describe OpenAI's completions alone."""

    name: str
    """The name of the engine in suites, options and settings."""
    interface: Api = DEFAULT
    """How requests are written and answers are read: token ids or text, streams with or without `[DONE]`."""
    lists_models: bool = True
    """Whether /v1/models lists the name under which the server serves. Without this list, the server is ours if the
    process that listens on the port belongs to the launch."""
    metrics_route: str = "/metrics"
    """HTTP path of the server's Prometheus page. A server without the page has no counters."""
    memory_in_log: Mapping[str, str] = MappingProxyType({})
    """Regular expressions for the lines of the engine's log that state GPU memory in GiB, under the names "weights",
    "graphs" and "kv". The sizes of one line add up."""
    two_largest: Mapping[str, object] = MappingProxyType({})
    """Fields of a request that ask for the two largest log-probabilities at each token; empty if there are none."""

    counter_names: Mapping[str, str] = MappingProxyType({})
    """Canonical name of a counter (metrics/server.py) → name on the metrics page, whose samples add up."""
    gauge_names: Mapping[str, str] = MappingProxyType({})
    """The same of gauges: running, waiting (requests)."""

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

    def ready(self, client: httpx.Client) -> bool:
        """Whether the server has finished its own warm-up; the query generates no token."""
        return client.get("/health").status_code == OK

    def post(self, spec: EngineSpec, request: Request, model: str) -> tuple[str, bytes]:  # noqa: ARG002
        """HTTP path and JSON body that make the server stream an answer of exactly the asked length."""
        return PATHS[self.interface.protocol], request_body(request, model, self.interface)

    def reset_cache(self, client: httpx.Client, *, external: bool) -> bool:  # noqa: ARG002
        """Empty the prefix cache; False if this server cannot.

        Args:
            external: also empty the engine's own KV cache tiers below GPU memory, if the engine can empty a tier alone.

        Raises:
            EngineError: the server supports the reset, and the reset failed.
        """
        return False

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

    def profiler_request(self, folder: Path, steps: int) -> Mapping[str, object]:  # noqa: ARG002
        """JSON body of POST /start_profile, which begins a trace of all ranks; arguments as in `profiler_flags`."""
        return {}

    def resolved(self, client: httpx.Client) -> Mapping[str, str]:  # noqa: ARG002
        """The configuration that the server resolved from its flags and defaults; empty if it does not report it.

        `block_size`, `num_gpu_blocks` (metric kv_blocks) and `max_num_batched_tokens` (metric chunk_budget) are
        vLLM's names, and mean the same for every engine.
        """
        return {}

    def loaded(self, client: httpx.Client) -> str | None:
        """Path or hub id of the loaded model; None if the server reports no model."""
        listed = json_list(client.get("/v1/models"), "data") if self.lists_models else None
        roots = [entry.get("root") for entry in listed or () if isinstance(entry, dict)]
        return str(roots[0]) if roots and roots[0] else None
