"""Parses a generation request, with the checks of vLLM and SGLang."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pytest_llmperf.emulator.flags.launch import Launch
from pytest_llmperf.emulator.http.replies import Refusal
from pytest_llmperf.emulator.http.text import tokens_of

Kind = Literal["completion", "chat", "response", "generate"]
KINDS: dict[str, Kind] = {
    "/v1/completions": "completion", "/v1/chat/completions": "chat", "/v1/responses": "response",
    "/generate": "generate",
}  # fmt: skip
_LENGTH_FIELDS = {"completion": "max_tokens", "chat": "max_completion_tokens", "response": "max_output_tokens"}
_DEFAULT_MAX_TOKENS = {"completion": 16, "generate": 128}


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation request.

    Args:
        kind: kind of the request, which follows from its route.
        prompts: token ids; each prompt is a separate sequence.
        max_tokens: number of tokens to generate per prompt.
        stream: whether the answer is a stream.
        include_usage, continuous_usage: whether the stream ends with a usage, and whether each chunk has a usage.
        token_ids: whether chunks contain token ids in addition to texts.
        salt: separates prefix caches.
        session: session that the request belongs to, for routers; "" for none.
    """

    kind: Kind
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    salt: str = ""
    session: str = ""

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


def read_generation_request(path: str, body: bytes, launch: Launch) -> GenerationRequest:
    """Read the body of a generation request.

    Raises:
        Refusal: 400 for a body that cannot be served, 404 for another model.
    """
    kind = KINDS[path]
    fields = _json_object(body)
    if kind == "generate":
        return checked(_generate(fields, launch), launch)
    model = fields.get("model") or launch.served_names[0]
    if model not in launch.served_names:
        names = ", ".join(launch.served_names)
        raise Refusal(404, f"The model `{model}` does not exist. Valid aliases: {names}.", "NotFoundError", "model")
    for name in ("n", "best_of"):
        if fields.get(name) not in (None, 1):
            raise Refusal(400, f"{name}={fields[name]} is not emulated: one answer per prompt.", param=name)
    if fields.get("logprobs") or fields.get("prompt_logprobs") or fields.get("echo"):
        raise Refusal(400, "logprobs, prompt_logprobs and echo are not emulated.", param="logprobs")
    prompts = _prompts(fields.get("prompt"), launch) if kind == "completion" else _chat_prompt(fields, kind, launch)
    options = fields.get("stream_options") or {}
    if options and not fields.get("stream"):
        raise Refusal(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    return checked(
        GenerationRequest(
            kind=kind,
            prompts=prompts,
            max_tokens=_max_tokens(fields, kind, prompts, launch),
            stream=bool(fields.get("stream")),
            include_usage=bool(options.get("include_usage")) or launch.usage_always,
            continuous_usage=bool(options.get("continuous_usage_stats")) and bool(options.get("include_usage")),
            token_ids=bool(fields.get("return_token_ids")),
            salt=str(fields.get("cache_salt") or fields.get("extra_key") or ""),
        ),
        launch,
    )


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise Refusal(400, f"The body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Refusal(400, "The body is no JSON object.")
    return fields


def _max_tokens(body: Mapping[str, Any], kind: Kind, prompts: tuple[tuple[int, ...], ...], launch: Launch) -> int:
    longest = max(map(len, prompts), default=0)
    given = body.get(_LENGTH_FIELDS[kind])
    given = body.get("max_tokens") if given is None else given
    least = body.get("min_tokens") or 0
    if given is None:
        given = _DEFAULT_MAX_TOKENS.get(kind, launch.config.max_model_len - longest)
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise Refusal(400, f"max_tokens must be at least 1, got {given}.", param="max_tokens")
    if not isinstance(least, int) or not 0 <= least <= given:
        text = f"min_tokens must be less than or equal to max_tokens={given}, got {least}."
        raise Refusal(400, text, param="min_tokens")
    return given


def _prompts(prompt: object, launch: Launch) -> tuple[tuple[int, ...], ...]:
    """A text, ids, or a list of either."""
    if isinstance(prompt, str):
        return (_encoded(prompt, launch),)
    if not isinstance(prompt, list) or not prompt:
        raise Refusal(400, "prompt must be a text, token ids, or a list of either.", param="prompt")
    if isinstance(prompt[0], int):
        return (_ids(prompt, launch),)
    return tuple(_encoded(part, launch) if isinstance(part, str) else _ids(part, launch) for part in prompt)


def _ids(prompt: object, launch: Launch) -> tuple[int, ...]:
    vocab = launch.config.shape.vocab
    if not isinstance(prompt, list) or set(map(type, prompt)) - {int}:
        raise Refusal(400, "prompt must be a text, token ids, or a list of either.", param="prompt")
    if prompt and not 0 <= min(prompt) <= max(prompt) < vocab:
        raise Refusal(400, f"Token id {max(prompt)} is out of vocabulary ({vocab} tokens).", param="prompt")
    return tuple(prompt)


def _encoded(text: str, launch: Launch) -> tuple[int, ...]:
    if not launch.tokenizer:
        raise Refusal(400, "The server has no tokenizer (skip-tokenizer-init): send token ids.", param="prompt")
    return tokens_of(text, launch.config.shape.vocab)


def _chat_prompt(body: Mapping[str, Any], kind: Kind, launch: Launch) -> tuple[tuple[int, ...], ...]:
    """A plain chat template: role and content of each message in turn. A text as `input` is one message."""
    messages = body.get("messages" if kind == "chat" else "input")
    if kind == "response" and isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise Refusal(400, "messages must be a list of objects with role and content.", param="messages")
    lines = [f"<|{message.get('role', 'user')}|>\n{_content(message.get('content'))}\n" for message in messages]
    return (_encoded("".join(lines) + "<|assistant|>\n", launch),)


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _generate(body: Mapping[str, Any], launch: Launch) -> GenerationRequest:
    """SGLang's native request."""
    sampling = body.get("sampling_params") or {}
    if not isinstance(sampling, dict) or sampling.get("n") not in (None, 1):
        raise Refusal(400, "sampling_params must be one object, with n of 1.")
    given = sampling.get("max_new_tokens", _DEFAULT_MAX_TOKENS["generate"])
    if not isinstance(given, int) or given < 1:
        raise Refusal(400, f"max_new_tokens must be at least 1, got {given}.")
    prompt = body.get("input_ids") if body.get("input_ids") is not None else body.get("text")
    return GenerationRequest(
        kind="generate",
        prompts=_prompts(prompt, launch),
        max_tokens=given,
        stream=bool(body.get("stream")),
        salt=str(body.get("extra_key") or ""),
    )


def checked(ask: GenerationRequest, launch: Launch) -> GenerationRequest:
    """The request, if it fits the model's context.

    Raises:
        Refusal: the request is too long, or a prompt is empty.
    """
    longest = launch.config.max_model_len
    for prompt in ask.prompts:
        size = len(prompt)
        if not size:
            raise Refusal(400, "The prompt must not be empty.", param="prompt")
        if size >= longest:
            raise Refusal(
                400,
                f"This model's maximum context length is {longest} tokens. However, your prompt contains {size} input "
                "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
                "input prompt.",
                param="input_tokens",
            )
        if size + ask.max_tokens > longest:
            raise Refusal(
                400,
                f"This model's maximum context length is {longest} tokens. However, you requested {ask.max_tokens} "
                f"output tokens and your prompt contains {size} input tokens, for a total of {size + ask.max_tokens} "
                "tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
                param="max_tokens",
            )
    return ask
