"""How an answer ended: the finish reasons of its choices, and which of them are a success."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

SHOWN_CHARACTERS = 200


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
    """The sentence about the first end that is no success; None where every end is."""
    end = next((end for end in ends if end.reason not in accepted), None)
    if end is None:
        return None
    reason, message = end.reason[:SHOWN_CHARACTERS], " ".join(end.message.split())[:SHOWN_CHARACTERS]
    said = f" ({message})" if message else ""
    return (f'ended with "{reason}"{said}, which is no success. If it is a success of this service, write '
            f'endpoint(…, ends=("{reason}",))')
