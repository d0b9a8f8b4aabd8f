"""Parses events and whole answers of the Responses API (`/v1/responses`)."""

from __future__ import annotations

from typing import Any

from pytest_llmperf.wire.chunks import Chunk, Usage, count, error_of, model_name

#: Types of the event that ends a stream.
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


def is_response(message: dict[str, Any]) -> bool:
    """Whether a JSON object is an event of the Responses API, or its whole answer."""
    kind = message.get("type")
    return message.get("object") == "response" or (isinstance(kind, str) and kind.startswith("response."))


def response_chunk(message: dict[str, Any]) -> Chunk:
    """Interpret the JSON object of an event, or of a whole answer.

    The deltas of text, reasoning, refusals and arguments are content, and so is the name of a function that is called.

    Raises:
        TypeError, AttributeError, KeyError: it does not have the shape of an event.
        ImpossibleCount: it counts fewer tokens than 0, or more than a context can hold.
    """
    kind = message.get("type")
    if kind is None:
        return _ended(message, "".join(map(_item_text, message["output"])))
    if kind in ENDS:
        return _ended(message["response"], "")
    text = ""
    if kind.endswith(".delta"):
        text = message["delta"]
        if not isinstance(text, str):
            raise TypeError(f"the delta is {text!r}")
    elif kind == "response.output_item.added" and message["item"].get("type") == "function_call":
        text = message["item"].get("name") or ""
    model = (message.get("response") or {}).get("model")
    return Chunk(bool(text), model_name(model), text, token_ids=None, finish_reason=None, usage=None, error=None)


def _ended(response: dict[str, Any], text: str) -> Chunk:
    """The end of a stream, or a whole answer with its text."""
    status = response.get("status")
    reason = (response.get("incomplete_details") or {}).get("reason") or status
    error = error_of(response)
    if error is None and status in ("failed", "cancelled"):
        error = f"the response has the status {status!r}"
    return Chunk(
        bool(text), model_name(response.get("model")), text, token_ids=None, finish_reason=reason,
        usage=_usage(response.get("usage")), error=error, done=True,
    )


def _usage(usage: dict[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    details = usage.get("input_tokens_details") or {}
    return Usage(count(usage.get("input_tokens")), count(usage.get("output_tokens")),
                 count(details.get("cached_tokens")))


def _item_text(item: dict[str, Any]) -> str:
    """The text of one item of an answer: a message, reasoning or a call of a function."""
    parts = [*(item.get("content") or ()), *(item.get("summary") or ())]
    texts = [part.get("text") or part.get("refusal") or "" for part in parts]
    return "".join([item.get("name") or "", item.get("arguments") or "", *texts])
