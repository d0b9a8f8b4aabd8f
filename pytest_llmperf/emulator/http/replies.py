"""Answers that are whole before they are sent, and the errors among them."""

from __future__ import annotations

import json
from dataclasses import dataclass

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, media type and body of an answer."""

    status: int
    body: bytes
    content_type: str = JSON


class Refusal(Exception):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        message, kind, param: as OpenAI's errors have them.
    """

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The error in OpenAI's form."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return dumps({"error": error})

    def reply(self) -> Reply:
        return Reply(self.status, self.body())


def dumps(value: object) -> bytes:
    """Compact JSON, as pydantic writes it."""
    return json.dumps(value, separators=(",", ":")).encode()


def json_reply(value: object, status: int = 200) -> Reply:
    return Reply(status, dumps(value))
