"""The bytes of streamed answers: one server-sent event per step that brought tokens, as vLLM and SGLang write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pytest_llmperf.emulator.http.replies import Refusal, dumps
from pytest_llmperf.emulator.http.response_events import ResponseEvents
from pytest_llmperf.emulator.http.text import text_of

if TYPE_CHECKING:
    from pytest_llmperf.emulator.flags.launch import Launch
    from pytest_llmperf.emulator.http.generation_request import GenerationRequest

DONE = b"data: [DONE]\n\n"
CRASHED = Refusal(500, "EngineCore encountered an issue (a planted fault).", "InternalServerError")
LIMITED = Refusal(429, "Too many requests (a planted fault).", "RateLimitError")
#: What answers a request that a planted fault refuses, by the kind of the fault.
REFUSALS = {"refused": CRASHED, "limited": LIMITED}


class Events(Protocol):
    """Writes one answer's events."""

    def opening(self) -> list[bytes]:
        """What comes right before the first token."""
        ...

    def tokens(self, index: int, ids: Sequence[int], cached: int, finished: bool) -> bytes:
        """Tokens of prompt `index`; `cached`: prompt tokens that came from the prefix cache."""
        ...

    def end(self) -> list[bytes]:
        """What follows the last token: usage and [DONE], one event each."""
        ...


def events_of(ask: GenerationRequest, launch: Launch, number: int, created: int) -> Events:
    """The writer for a request.

    Args:
        ask, launch: the request and the server.
        number: number of the request, from which its id follows.
        created: seconds since 1970.
    """
    if ask.kind == "generate":
        return _GenerateEvents(ask, launch, number)
    if ask.kind == "response":
        return ResponseEvents(ask, launch, number, created)
    return _OpenAiEvents(ask, launch, number, created)


def error_event(refusal: Refusal = CRASHED) -> bytes:
    """An error after the head was sent: the status is 200 already."""
    return b"data: " + refusal.body() + b"\n\n"


def usage_of(prompt_tokens: int, completion_tokens: int, cached: int | None) -> dict[str, object]:
    """OpenAI's usage; `cached` None: the server does not report cached tokens."""
    usage: dict[str, object] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return usage


def answer_id(ask: GenerationRequest, launch: Launch, number: int) -> str:
    return f"{'chatcmpl' if ask.kind == 'chat' else 'cmpl'}-{launch.request_id(number)}"


class _OpenAiEvents:
    """Chunks of /v1/completions and /v1/chat/completions. Templates, because this is the hot path of the server."""

    def __init__(self, ask: GenerationRequest, launch: Launch, number: int, created: int) -> None:
        chat = ask.kind == "chat"
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._ask = ask
        self._texts = launch.tokenizer
        self._cached_details = launch.cached_details
        self._head = b'"id":%s,"object":"%s","created":%d,"model":%s,"choices":[' % (
            dumps(answer_id(ask, launch, number)), kind.encode(), created, dumps(launch.served_names[0])
        )  # fmt: skip
        self._generated = [0] * len(ask.prompts)
        self._cached = 0
        opening = b'data: {%s{"index":%%d,' % self._head.replace(b"%", b"%%")
        if chat:
            self._open, self._close = opening + b'"delta":{"content":"%s"},"logprobs":null,"finish_reason":%s', b"}]"
        else:
            self._open = opening + b'"text":"%s","logprobs":null,"finish_reason":%s,"stop_reason":null'
            self._close = b"}]"

    def opening(self) -> list[bytes]:
        """The role, in chats."""
        if self._ask.kind != "chat":
            return []
        prompt = dumps(list(self._ask.prompts[0])) if self._ask.token_ids else b"null"
        choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        usage = self._usage(len(self._ask.prompts[0]), 0) if self._ask.continuous_usage else b""
        return [b'data: {%s%s,"prompt_token_ids":%s%s}\n\n' % (self._head, choice, prompt, usage)]

    def tokens(self, index: int, ids: Sequence[int], cached: int, finished: bool) -> bytes:
        ask = self._ask
        earlier = self._generated[index]
        self._generated[index] = generated = earlier + len(ids)
        if not earlier:
            self._cached += cached
        text = "".join(map(text_of, ids)).encode() if self._texts else b""
        event = self._open % (index, text, b'"length"' if finished else b"null")
        if ask.kind == "chat":
            event += b',"stop_reason":null' if finished else b""
            event += b',"token_ids":%s' % (dumps(list(ids)) if ask.token_ids else b"null")
        else:
            prompt = dumps(list(ask.prompts[index])) if ask.token_ids and not earlier else b"null"
            event += b',"prompt_token_ids":%s,"token_ids":%s' % (prompt, dumps(list(ids)) if ask.token_ids else b"null")
        event += self._close
        if ask.continuous_usage:
            event += self._usage(len(ask.prompts[index]), generated)
        return event + b"}\n\n"

    def end(self) -> list[bytes]:
        if not self._ask.include_usage:
            return [DONE]
        cached = self._cached if self._cached_details else None
        usage = usage_of(self._ask.prompt_tokens, sum(self._generated), cached)
        return [b'data: {%s],"usage":%s}\n\n' % (self._head, dumps(usage)), DONE]

    @staticmethod
    def _usage(prompt: int, generated: int) -> bytes:
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
            prompt, prompt + generated, generated
        )  # fmt: skip


class _GenerateEvents:
    """SGLang's native stream: each event has all text and ids so far, unless a flag of the server changes that."""

    def __init__(self, ask: GenerationRequest, launch: Launch, number: int) -> None:
        self._ask = ask
        self._texts = launch.tokenizer
        self._incremental = launch.incremental
        self._id = launch.request_id(number)
        self._ids: list[list[int]] = [[] for _ in ask.prompts]
        self._counts = [0] * len(ask.prompts)

    def opening(self) -> list[bytes]:
        return []

    def tokens(self, index: int, ids: Sequence[int], cached: int, finished: bool) -> bytes:
        shown = list(ids) if self._incremental else [*self._ids[index], *ids]
        self._ids[index] = shown
        self._counts[index] += len(ids)
        event: dict[str, object] = {"text": "".join(map(text_of, shown))} if self._texts else {}
        event["output_ids"] = shown
        event["meta_info"] = {
            "id": self._id,
            "finish_reason": {"type": "length", "length": self._ask.max_tokens} if finished else None,
            "prompt_tokens": len(self._ask.prompts[index]),
            "completion_tokens": self._counts[index],
            "cached_tokens": cached,
        }
        if len(self._ask.prompts) > 1:
            event["index"] = index
        return b"data: %s\n\n" % dumps(event)

    def end(self) -> list[bytes]:
        return [DONE]
