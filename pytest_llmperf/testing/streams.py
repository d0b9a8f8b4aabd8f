"""Correct OpenAI-style streams, byte by byte, to be damaged by tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes, `delay_s` after the step before."""

    data: bytes
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection in an orderly way (FIN)."""

    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reset:
    """Abort the connection (RST)."""

    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hang:
    """Say nothing more, and keep the connection open until the client or the test ends."""


Step = Send | Close | Reset | Hang
Script = Sequence[Step]


def event(message: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(message, separators=(",", ":")).encode() + b"\n\n"


def http_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def error_event(message: str, code: int = 500) -> bytes:
    """What an engine sends when it fails after HTTP 200."""
    return event({"error": {"message": message, "type": "InternalServerError", "code": code}})


@dataclass(frozen=True, slots=True)
class StreamShape:
    """A stream as vLLM sends it.

    Args:
        chunk_tokens: tokens that each content chunk brings.
        prompt_tokens: what the usage says.
        cached_tokens: what the usage says; None leaves it out.
        chat: chat completions instead of completions; a role chunk comes first.
        continuous_usage: usage in every chunk, as `continuous_usage_stats` asks.
        token_ids: list token ids, as `return_token_ids` asks.
        text: of every content chunk.
        model: whose name every event gives; None leaves it out.
    """

    chunk_tokens: Sequence[int] = (1, 1, 1, 1)
    prompt_tokens: int = 8
    cached_tokens: int | None = None
    chat: bool = False
    continuous_usage: bool = True
    token_ids: bool = False
    text: str = " x"
    model: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def events(self) -> list[bytes]:
        """Content events, the usage event, `[DONE]`."""
        chunks = [self._role()] if self.chat else []
        total = 0
        for position, tokens in enumerate(self.chunk_tokens):
            total += tokens
            last = position == len(self.chunk_tokens) - 1
            chunks.append(self._content(tokens, total, last))
        return [*chunks, self.usage_event(), DONE]

    def usage_event(self) -> bytes:
        """The chunk without choices that ends a stream with `include_usage`."""
        return event(self._message([], self.usage(sum(self.chunk_tokens), final=True)))

    def usage(self, completion_tokens: int, *, final: bool = False) -> dict[str, Any]:
        counts: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
        }
        if final and self.cached_tokens is not None:
            counts["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return counts

    def _role(self) -> bytes:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return event(self._message([choice], self.usage(0) if self.continuous_usage else None))

    def _content(self, tokens: int, total: int, last: bool) -> bytes:
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if last else None}
        choice |= {"delta": {"content": self.text}} if self.chat else {"text": self.text}
        if self.token_ids:
            choice["token_ids"] = list(range(1000, 1000 + tokens))
        return event(self._message([choice], self.usage(total) if self.continuous_usage else None))

    def _message(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        message = {"id": "cmpl-0", "object": kind, "created": 0, "choices": choices}
        named = {} if self.model is None else {"model": self.model}
        return message | named | ({} if usage is None else {"usage": usage}) | self.extra


def streamed(
    events: Iterable[bytes],
    *,
    ttft_s: float = 0.0,
    itl_s: float = 0.0,
    end: Literal["last chunk", "open"] = "last chunk",
) -> list[Step]:
    """Script of a chunked 200 answer: the head at once, the first event after `ttft_s`, then one each `itl_s`.

    `end="open"` leaves out the last chunk, for scripts that go on in their own way.
    """
    steps: list[Step] = [Send(STREAM_HEAD)]
    for position, data in enumerate(events):
        steps.append(Send(http_chunk(data), ttft_s if position == 0 else itl_s))
    if end == "last chunk":
        steps.append(Send(LAST_CHUNK))
    return steps


def plain(status: int, body: bytes = b"", reason: str = "Status", **headers: str) -> list[Step]:
    """Script of an answer with Content-Length. Underscores in header names stand for hyphens."""
    lines = [f"HTTP/1.1 {status} {reason}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return [Send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)]
