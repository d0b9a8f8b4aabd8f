"""The OpenAI requests that servers understand: completions, chat completions and responses."""

from __future__ import annotations

import json

from pytest_llmperf.model.api import DEFAULT, FORCING, STOPPING, Api
from pytest_llmperf.model.request import Request

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
