"""Parses one event of an OpenAI-style stream, or a whole answer: content, tokens, usage, finish, error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: No context is as long.
MOST_TOKENS = 10**9
SHOWN_DIGITS = 30
LONGEST_NAME = 512  # characters that are kept of a model's name


class ImpossibleCount(ValueError):
    """A count of tokens that no answer can have."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server gave them; None where it did not."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One JSON event.

    Args:
        model: name of the model that answers; None if the event names no model.
        text: the text in the event's choices: content, reasoning, and name and arguments of tool calls. "" for an event
            of /generate, whose text may be cumulative.
        token_ids: number of token ids in the event's choices; None without token ids.
        finish_reason: finish reason of the first choice that has one.
        usage: token counts so far or final token counts; None if the event has no usage.
        error: error message of the event, in one line; None without an error.
        done: whether this event ends the stream, as the last event of the Responses API does.
        choice: index of the first choice of the event; above 0 only with `n` > 1.
    """

    has_choices: bool
    model: str | None
    text: str
    token_ids: int | None
    finish_reason: str | None
    usage: Usage | None
    error: str | None
    done: bool = False
    choice: int = 0


def read_chunk(message: dict[str, Any], event_type: str = "") -> Chunk:
    """Interpret the JSON object of one event, or of a whole answer.

    Raises:
        TypeError, AttributeError: it does not have the shape of a completion chunk.
        ImpossibleCount: it counts fewer tokens than 0, or more than a context can hold.
    """
    if "meta_info" in message:
        return _native_chunk(message["meta_info"])
    choices = message.get("choices") or []
    return Chunk(
        has_choices=bool(choices),
        model=model_name(message.get("model")),
        text="".join([_text(choice) for choice in choices]),
        token_ids=_token_ids(choices),
        finish_reason=next((c["finish_reason"] for c in choices if c.get("finish_reason")), None),
        choice=choices[0].get("index") or 0 if choices else 0,
        usage=_usage(message.get("usage")),
        error=error_of(message, event_type),
    )


def _native_chunk(meta: dict[str, Any]) -> Chunk:
    """An event of SGLang's /generate. Its text may be cumulative or not; its counts always are."""
    reason = meta.get("finish_reason") or {}
    aborted = reason.get("type") == "abort"
    return Chunk(
        has_choices=True,
        model=None,
        text="",
        token_ids=None,
        finish_reason=reason.get("type"),
        usage=Usage(*map(count, (meta.get(f"{kind}_tokens") for kind in ("prompt", "completion", "cached")))),
        error=f"abort: {reason.get('message')}" if aborted else None,
    )


def model_name(name: object) -> str | None:
    """The model name, or None for an empty name, which some gateways send with the first event."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"the name of a model is {name!r}")
    return name[:LONGEST_NAME] if name else None


def _text(choice: dict[str, Any]) -> str:
    delta = choice["delta"] if "delta" in choice else choice.get("message")
    if delta is None:
        return choice.get("text") or ""
    text: str = delta.get("content") or ""
    if "reasoning_content" in delta or "reasoning" in delta:  # some servers send the same text under both names
        text = (delta.get("reasoning_content") or delta.get("reasoning") or "") + text
    if calls := delta.get("tool_calls"):
        text += "".join([_call_text(call.get("function") or {}) for call in calls])
    return text + (delta["refusal"] or "") if "refusal" in delta else text


def _call_text(function: dict[str, Any]) -> str:
    """Name and arguments, which the model generates token by token."""
    name, arguments = function.get("name") or "", function.get("arguments") or ""
    return f"{name}{arguments}"


def _token_ids(choices: list[dict[str, Any]]) -> int | None:
    counts = [len(c["token_ids"]) for c in choices if c.get("token_ids") is not None]
    return sum(counts) if counts else None


def _usage(usage: dict[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("cached_tokens")
    return Usage(*map(count, counts))


def count(value: object) -> int | None:
    """A count of tokens; None where there is none.

    Raises:
        TypeError: the value is no number.
        ImpossibleCount: no answer has so many tokens.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"a count of tokens is {value!r}")
    if value is not None and not 0 <= value <= MOST_TOKENS:
        raise ImpossibleCount(f"usage counts {str(value)[:SHOWN_DIGITS]} tokens, and 0 to {MOST_TOKENS} are possible")
    return value


def error_of(message: dict[str, Any], event_type: str = "") -> str | None:
    """The error message of an event; None without an error."""
    error = message.get("error")
    if error is None and (message.get("object") == "error" or event_type == "error"):
        error = message
    if isinstance(error, dict):
        return f"{error.get('code') or error.get('type') or 'error'}: {error.get('message') or error}"
    return None if error is None else str(error)
