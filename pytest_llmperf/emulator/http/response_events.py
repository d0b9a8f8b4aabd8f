"""The Responses API as vLLM 0.32 serves it: a stream of typed events, numbered and without a usage in each event.

A text event has the text of one step. A step without text has no event. The last event holds the whole answer with its
usage, and no `[DONE]` follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_llmperf.emulator.http.replies import dumps
from pytest_llmperf.emulator.http.text import text_of

if TYPE_CHECKING:
    from pytest_llmperf.emulator.flags.launch import Launch
    from pytest_llmperf.emulator.http.generation_request import GenerationRequest


def whole_response(
    ask: GenerationRequest, launch: Launch, number: int, created: int, *, text: str, tokens: int, cached: int
) -> dict[str, object]:
    """The answer as one object. Every answer reaches its limit, which gives the status "incomplete"."""
    usage = {
        "input_tokens": ask.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "input_tokens_per_turn": [], "cached_tokens_per_turn": []},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": [],
                                  "tool_output_tokens_per_turn": []},
        "total_tokens": ask.prompt_tokens + tokens,
    }
    output = [_item(number, "completed", [_part(text)])] if text else []
    return _response(ask, launch, number, created) | {
        "incomplete_details": {"reason": "max_output_tokens"}, "output": output, "status": "incomplete", "usage": usage,
    }  # fmt: skip


class ResponseEvents:
    """Events of /v1/responses."""

    def __init__(self, ask: GenerationRequest, launch: Launch, number: int, created: int) -> None:
        self._ask = ask
        self._launch = launch
        self._number = number
        self._created = created
        self._events = 0
        self._texts: list[str] = []
        self._tokens = 0
        self._cached = 0

    def opening(self) -> list[bytes]:
        response = _response(self._ask, self._launch, self._number, self._created)
        return [self._event(f"response.{kind}", response=response) for kind in ("created", "in_progress")]

    def tokens(self, _index: int, ids: Sequence[int], cached: int, _finished: bool) -> bytes:
        self._cached = self._cached if self._tokens else cached
        self._tokens += len(ids)
        text = "".join(map(text_of, ids)) if self._launch.tokenizer else ""
        if not text:
            return b""
        opening = b"" if self._texts else self._open()
        self._texts.append(text)
        return opening + self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def end(self) -> list[bytes]:
        text = "".join(self._texts)
        answer = whole_response(self._ask, self._launch, self._number, self._created, text=text, tokens=self._tokens,
                                cached=self._cached)
        return [*(self._close(text) if text else []), self._event("response.completed", response=answer)]

    @property
    def _place(self) -> dict[str, object]:
        return {"content_index": 0, "item_id": _item_id(self._number), "output_index": 0}

    def _open(self) -> bytes:
        item = _item(self._number, "in_progress", [])
        return (self._event("response.output_item.added", output_index=0, item=item)
                + self._event("response.content_part.added", **self._place, part=_part("")))

    def _close(self, text: str) -> list[bytes]:
        item = _item(self._number, "completed", [_part(text)])
        return [
            self._event("response.output_text.done", **self._place, text=text, logprobs=[]),
            self._event("response.content_part.done", **self._place, part=_part(text)),
            self._event("response.output_item.done", output_index=0, item=item),
        ]

    def _event(self, kind: str, **values: object) -> bytes:
        event = values | {"sequence_number": self._events, "type": kind}
        self._events += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), dumps(event))


def _response(ask: GenerationRequest, launch: Launch, number: int, created: int) -> dict[str, object]:
    return {
        "id": f"resp_{launch.request_id(number)}", "created_at": created, "incomplete_details": None,
        "instructions": None,
        "metadata": None, "model": launch.served_names[0], "object": "response", "output": [],
        "parallel_tool_calls": True, "temperature": 0.0, "tool_choice": "auto", "tools": [], "top_p": 1.0,
        "background": False, "max_output_tokens": ask.max_tokens, "max_tool_calls": None,
        "previous_response_id": None, "prompt": None, "reasoning": None, "service_tier": "auto",
        "status": "in_progress", "text": None, "top_logprobs": None, "truncation": "disabled", "usage": None,
        "user": None,
    }  # fmt: skip


def _item_id(number: int) -> str:
    return f"msg_{number:032x}"


def _item(number: int, status: str, content: list[dict[str, object]]) -> dict[str, object]:
    return {"id": _item_id(number), "content": content, "role": "assistant", "status": status, "type": "message"}


def _part(text: str) -> dict[str, object]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}
