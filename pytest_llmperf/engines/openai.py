"""The OpenAI requests that servers understand: completions, and chat completions of endpoints."""

from __future__ import annotations

import json

from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.request import Request

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


def completion_body(request: Request, model: str) -> bytes:
    """JSON body of a streamed completion of exactly `request.output_tokens` tokens.

    Sampling is greedy, so that the two sides of a comparison generate equal tokens. The usage in each chunk is the
    cheapest way to count the tokens of the chunk.
    """
    return _body(request, {"prompt": request.prompt}, model)


def chat_body(request: Request, model: str) -> bytes:
    """The same as one user message of a chat.

    Raises:
        SpecError: the prompt is token ids, which a chat cannot contain.
    """
    if not isinstance(request.prompt, str):
        raise SpecError('A chat takes text, and this workload has token ids. Write random_tokens(…, text=True), or '
                        'measure the endpoint with protocol="completions".')
    return _body(request, {"messages": [{"role": "user", "content": request.prompt}]}, model)


def _body(request: Request, prompt: dict[str, object], model: str) -> bytes:
    return json.dumps(
        {
            "model": model,
            **prompt,
            "max_tokens": request.output_tokens,
            "min_tokens": request.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **({"return_token_ids": True} if request.answer_used and isinstance(request.prompt, tuple) else {}),
        },
        separators=(",", ":"),
    ).encode()
