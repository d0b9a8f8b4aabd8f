"""The OpenAI completions request that every engine here understands."""

from __future__ import annotations

import json

from pytest_llmperf.model.request import Request

COMPLETIONS = "/v1/completions"


def completion_body(request: Request, model: str) -> bytes:
    """JSON body of a streamed completion of exactly `request.output_tokens` tokens.

    Sampling is greedy, so that the two sides of a comparison generate equal tokens. The usage in each chunk is the
    cheapest way to count the tokens of the chunk.
    """
    return json.dumps(
        {
            "model": model,
            "prompt": list(request.prompt) if isinstance(request.prompt, tuple) else request.prompt,
            "max_tokens": request.output_tokens,
            "min_tokens": request.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        separators=(",", ":"),
    ).encode()
