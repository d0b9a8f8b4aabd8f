"""Parses events and whole answers of the Responses API (`/v1/responses`)."""

from __future__ import annotations

from typing import Any

from pytest_llmperf.wire.chunks import Chunk, End, error_of, model_name, request_id, text_of, usage_of

#: Types of the event that ends a stream.
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
#: What a tool returned, which the model did not generate.
_OF_TOOLS = frozenset({"output", "outputs", "results"})


def is_response(message: dict[str, Any]) -> bool:
    """Whether a JSON object is an event of the Responses API, or its whole answer."""
    kind = message.get("type")
    return message.get("object") == "response" or (isinstance(kind, str) and kind.startswith("response."))


def response_chunk(message: dict[str, Any]) -> Chunk:
    """Interpret the JSON object of an event, or of a whole answer.

    The deltas of text, reasoning, refusals and arguments are content, and so is the name of a function that is called.

    Raises:
        TypeError, AttributeError, KeyError: it does not have the shape of an event.
        ImpossibleCount: a count of tokens is below 0, or above any context length.
    """
    kind = message.get("type")
    if kind is None:
        return _ended(message, "".join(map(_item_text, message["output"])))
    if kind in ENDS:
        return _ended(message["response"], "", kind.removeprefix("response."))
    text = ""
    if kind.endswith(".delta") and not kind.endswith("audio.delta"):  # the transcript has events of its own
        if not isinstance(message["delta"], str | dict | list):
            raise TypeError(f"the delta is {message['delta']!r}")
        text = text_of(message["delta"])
    elif kind == "response.output_item.added":
        text = text_of(message["item"].get("name"))
    response = message.get("response") or {}
    return Chunk(
        bool(text), model_name(response.get("model")), text, token_ids=None, ends=(), usage=None,
        error=error_of(response), id=request_id(response.get("id")),
    )


def _ended(response: dict[str, Any], text: str, kind: str = "") -> Chunk:
    """The end of a stream, or a whole answer with its text.

    Args:
        kind: of the event that ends the stream, which counts unless it is the usual one.
    """
    return Chunk(
        bool(text), model_name(response.get("model")), text, token_ids=None, ends=response_ends(response, kind),
        usage=usage_of(response.get("usage"), "input_tokens", "output_tokens"), error=error_of(response), done=True,
        id=request_id(response.get("id")),
    )


def response_ends(response: dict[str, Any], kind: str = "") -> tuple[End, ...]:
    """The end that a response states: its status, and for an incomplete response the reason."""
    status = kind if kind not in ("", "completed") else response.get("status") or kind
    if status == "incomplete":
        status = (response.get("incomplete_details") or {}).get("reason") or status
    return (End(0, str(status)),) if status else ()


def _item_text(item: dict[str, Any]) -> str:
    """The text of one item of an answer: a message, reasoning or a call of a tool."""
    return text_of({name: value for name, value in item.items() if name not in _OF_TOOLS})
