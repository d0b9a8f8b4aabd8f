"""Parses one event of an OpenAI-style stream, or a whole answer: content, tokens, usage, finish, error, origin."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

#: Fields whose text describes an answer and is not generated. Text in every other field is content.
DESCRIBING = frozenset({
    "role", "type", "id", "index", "object", "status", "format", "model", "annotations", "citations", "logprobs",
    "obfuscation",
})
OF_DELTA = DESCRIBING | {"name"}  # in a delta the name is of the author, and in a call of the tool
#: Encrypted or encoded, so their length says nothing about tokens.
OPAQUE_ENDINGS = ("_id", "_ids", "signature", "signatures", "encrypted_content")
AUDIO = "audio"
ARGUMENTS = ("arguments", "input")
MODEL_TEXT = ("content", "reasoning", "reasoning_content", "refusal", "text")


def delta_text(delta: Mapping[str, Any]) -> str:
    """The text of a delta, or of a whole message.

    Servers send one text under several names (`reasoning`, `reasoning_details`): equal texts count once.

    Raises:
        TypeError, AttributeError: a field of text has another type.
    """
    text = delta.get("content")
    if len(delta) == 1 and type(text) is str:
        return text
    filled = [(name, value) for name, value in delta.items() if value and name not in OF_DELTA]
    if len(filled) == 1 and filled[0][1] is text and type(text) is str:
        return text
    return "".join(dict.fromkeys(_field_text(name, value) for name, value in filled))


def _field_text(name: str, value: object) -> str:
    if name in MODEL_TEXT and not isinstance(value, str | list | dict):
        raise TypeError(f"the field {name} is {value!r}")
    if name == AUDIO and isinstance(value, dict):
        return text_of(value.get("transcript"))
    if name in ARGUMENTS and isinstance(value, dict):
        return json.dumps(value)
    return "" if name.endswith(OPAQUE_ENDINGS) else text_of(value)


def text_of(value: object) -> str:
    """All text in a part of a message: a text, a list of parts, or an object such as a call of a tool."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(text_of, value))
    if not isinstance(value, dict):
        return ""
    hidden = ("data",) if str(value.get("type")).endswith("encrypted") else ()
    return "".join(dict.fromkeys(_field_text(name, part) for name, part in value.items()
                                 if part and name not in DESCRIBING and name not in hidden))


SHOWN_OF_END = 200


class End(NamedTuple):
    """The end of one choice.

    Args:
        choice: index of the choice.
        reason: finish reason as the server wrote it, such as "stop".
        message: explanation of the server; "" without.
    """

    choice: int
    reason: str
    message: str = ""


def end_of(choice: int, reason: object) -> End:
    """The end that a finish reason states.

    Args:
        choice: index of the choice.
        reason: a text, or an object with `type` and `message`, as SGLang writes it. An empty reason is no end.

    Raises:
        TypeError: the finish reason has another type.
    """
    if isinstance(reason, Mapping):
        return End(choice, str(reason.get("type")), str(reason.get("message") or ""))
    if not isinstance(reason, str):
        raise TypeError(f"the finish reason is {reason!r}")
    return End(choice, reason)


def unsuccessful(ends: Collection[End], accepted: Collection[str]) -> str | None:
    """The sentence about the first end that is no success; None if every end is."""
    end = next((end for end in ends if end.reason not in accepted), None)
    if end is None:
        return None
    reason, message = end.reason[:SHOWN_OF_END], " ".join(end.message.split())[:SHOWN_OF_END]
    said = f" ({message})" if message else ""
    return (f'ended with "{reason}"{said}, which is no success. If it is a success of this service, write '
            f'endpoint(…, ends=("{reason}",))')


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
    """Token counts as the server gave them; None if it did not."""

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
        ImpossibleCount: a count of tokens is below 0, or above any context length.
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
        usage=usage_of(message.get("usage")),
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


def usage_of(
    usage: dict[str, Any] | None, prompt: str = "prompt_tokens", completion: str = "completion_tokens"
) -> Usage | None:
    """The usage under the names of a protocol; None for none."""
    if not usage:
        return None
    details = usage.get(f"{prompt}_details") or {}
    counts = usage.get(prompt), usage.get(completion), details.get("cached_tokens")
    return Usage(*map(count, counts))


def count(value: object) -> int | None:
    """A count of tokens; None if there is none.

    Raises:
        TypeError: the value is no number.
        ImpossibleCount: the count is negative, or larger than any answer.
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


SHOWN_OF_ID = 64


class Origin:
    """Follows the request id and the index of the choice through the events of one answer.

    With one answer the index of a choice is constant, or it counts the chunks.

    Attributes:
        id: request id of the answer; None without.
        problem: what no answer to the request can contain: another request id, or a further choice; None for nothing.
    """

    __slots__ = ("_index", "_stays", "id", "problem")

    def __init__(self) -> None:
        self.id: str | None = None
        self.problem: str | None = None
        self._index: int | None = None  # of the last choice with text
        self._stays = False  # whether two chunks in a row had the index

    def is_usual(self, chunk: Chunk) -> bool:
        """Whether the event has the id and the choice of the event before, as nearly every event has."""
        if chunk.id != self.id or chunk.choice != self._index or chunk.choices > 1:
            return False
        self._stays = self._stays or bool(chunk.text)
        return True

    def check(self, chunk: Chunk, answers: int, ended: bool) -> None:
        """Take any other event.

        Args:
            chunk: the event.
            answers: number of answers to the request (`n`).
            ended: whether a choice has ended before.
        """
        if chunk.id is not None and chunk.id != self.id:
            if self.id is not None:
                self.problem = (f"the request id changes from {self.id[:SHOWN_OF_ID]!r} to "
                                f"{chunk.id[:SHOWN_OF_ID]!r} within the answer")
            self.id = chunk.id
        asked = f"the request asks for {answers} answer{'s' * (answers > 1)}"
        if chunk.choices > answers or (answers > 1 and chunk.last_choice >= answers):
            self.problem = f"an event has choice {max(chunk.last_choice, chunk.choices - 1)}, and {asked}"
        if answers > 1 or not (chunk.text or chunk.token_ids):
            return
        before, self._index = self._index, chunk.choice
        stayed, self._stays = self._stays, chunk.choice == before
        if before is not None and chunk.choice != before and (chunk.choice < before or stayed or ended):
            self.problem = f"events of choice {before} and of choice {chunk.choice}, and {asked}"
