"""Reads JSON answers of servers to control requests. The content is untrusted, so each access checks the type."""

from __future__ import annotations

from pytest_llmperf.engines.control import lazy_httpx as httpx

LONGEST_NUMBER = 15


MOST_CONTAINERS = 200_000  # each takes some hundred bytes of memory, and two in the text


def json_object(response: httpx.Response) -> dict[str, object]:
    """The JSON object in an answer of status 200; empty for any other answer."""
    body = _body(response)
    return body if isinstance(body, dict) else {}


def json_list(response: httpx.Response, name: str) -> list[object] | None:
    """The JSON list that an answer of status 200 is, or has under a name; None for any other answer."""
    body = _body(response)
    listed = body.get(name) if isinstance(body, dict) else body
    return listed if isinstance(listed, list) else None


def _body(response: httpx.Response) -> object:
    if response.status_code != 200 or response.content.count(b"[") + response.content.count(b"{") > MOST_CONTAINERS:
        return None
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def whole_number(text: str) -> int | None:
    """The number that a text of at most 15 decimal digits is; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER else None


def section(table: dict[str, object], name: str) -> dict[str, object]:
    """The JSON object under a name; empty if the value is missing or has a different type."""
    value = table.get(name)
    return value if isinstance(value, dict) else {}
