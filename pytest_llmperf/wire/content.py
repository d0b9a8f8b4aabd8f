"""Finds the generated text in a delta or a message, whatever its fields are called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
