"""Parses one event of an OpenAI-style stream, or a whole answer: content, tokens, usage, finish, error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_llmperf.wire.content import MODEL_TEXT, delta_text
from pytest_llmperf.wire.ends import End, end_of

#: No context is as long.
MOST_TOKENS = 10**9
SHOWN_DIGITS = 30
LONGEST_NAME = 512  # characters that are kept of a model's name, and of a request id
#: Ollama draws the id of an answer from 999 numbers, so different answers share an id.
FEW_IDS = "fp_ollama"


class ImpossibleCount(ValueError):
    """A count of tokens that no answer can have."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server gave them; None where it did not."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


@dataclass(slots=True)  # not frozen, which would take 1 µs of the 10 µs that an event takes
class Chunk:
    """One JSON event.

    Args:
        model: name of the model that answers; None if the event names no model.
        text: the text in the event's choices: content, reasoning, calls of tools and text in unknown fields. "" for an
            event of /generate, whose text may be cumulative.
        token_ids: number of token ids in the event's choices; None without token ids.
        ends: ends of the choices that end with this event.
        usage: token counts so far or final token counts; None if the event has no usage.
        error: error message of the event, in one line; None without an error.
        done: whether this event ends the stream, as the last event of the Responses API does.
        choice, last_choice: smallest and largest index of the event's choices; above 0 only with `n` > 1.
        choices: number of choices in the event.
        id: request id of the answer; None if the event has no id, or an id that does not name one request.
    """

    has_choices: bool
    model: str | None
    text: str
    token_ids: int | None
    ends: tuple[End, ...]
    usage: Usage | None
    error: str | None
    done: bool = False
    choice: int = 0
    last_choice: int = 0
    choices: int = 1
    id: str | None = None


def read_chunk(message: dict[str, Any], event_type: str = "") -> Chunk:
    """Interpret the JSON object of one event, or of a whole answer.

    Raises:
        TypeError, AttributeError: it does not have the shape of a completion chunk.
        ImpossibleCount: it counts fewer tokens than 0, or more than a context can hold.
    """
    if "meta_info" in message:
        return _native_chunk(message["meta_info"])
    choices = message.get("choices") or []
    chunk = Chunk(
        has_choices=bool(choices),
        model=model_name(message.get("model")),
        text="".join([_text(choice) for choice in choices]),
        token_ids=_token_ids(choices),
        ends=ends_of(message),
        usage=_usage(message.get("usage")),
        error=error_of(message, event_type),
        choices=len(choices),
        id=None if message.get("system_fingerprint") == FEW_IDS else request_id(message.get("id")),
    )
    if choices and (len(choices) > 1 or choices[0].get("index")):
        indices = [int(choice.get("index") or 0) for choice in choices]
        chunk.choice, chunk.last_choice = min(indices), max(indices)
    return chunk


def _native_chunk(meta: dict[str, Any]) -> Chunk:
    """An event of SGLang's /generate. Its text may be cumulative or not; its counts always are."""
    reason = meta.get("finish_reason")
    return Chunk(
        has_choices=True,
        model=None,
        text="",
        token_ids=None,
        ends=(end_of(0, reason),) if reason else (),
        usage=Usage(*map(count, (meta.get(f"{kind}_tokens") for kind in ("prompt", "completion", "cached")))),
        error=None,
        id=request_id(meta.get("id")),
    )


def ends_of(message: dict[str, Any]) -> tuple[End, ...]:
    """The ends that an event states, of each choice at most one."""
    return tuple([end_of(int(choice.get("index") or 0), choice["finish_reason"])
                  for choice in message.get("choices") or () if choice.get("finish_reason")])


def request_id(value: object) -> str | None:
    """The request id; None for an empty id, as in the first event of Azure."""
    return str(value)[:LONGEST_NAME] if value else None


def model_name(name: object) -> str | None:
    """The model name, or None for an empty name, which some gateways send with the first event."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"the name of a model is {name!r}")
    return name[:LONGEST_NAME] if name else None


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    if delta is None:
        delta = choice.get("message")
    text = delta_text(delta) if delta else ""
    if text or not (text := choice.get("text") or ""):
        return text or delta_text({name: choice[name] for name in MODEL_TEXT if name in choice})
    if not isinstance(text, str):
        raise TypeError(f"the text of a choice is {text!r}")
    return text


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
    """The error message of an event or of one of its choices; None without an error. An empty error is none."""
    error = _filled(message.get("error"))
    for choice in message.get("choices") or ():
        if error is None and "error" in choice:
            error = _filled(choice["error"])
    if error is None and (event_type == "error" or message.get("object") == "error" or message.get("type") == "error"):
        error = message
    if isinstance(error, dict):
        return f"{error.get('code') or error.get('type') or 'error'}: {error.get('message') or error}"
    return None if error is None else str(error)


def _filled(error: object) -> object:
    """The error; None for an empty one."""
    return error if (any(error.values()) if isinstance(error, dict) else error) else None
