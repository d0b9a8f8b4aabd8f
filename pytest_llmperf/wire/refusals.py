"""Refusals of a service that has more requests than it wants: which answers are refusals, and how long to wait."""

from __future__ import annotations

import re
from collections.abc import Mapping

TOO_MANY_REQUESTS = 429
UNAVAILABLE = 503
#: Begin of the message of an engine's admission control → the limit that refused.
ADMISSION_CONTROL = {
    b"engine is currently busy and cannot accept new requests": "max_num_queued_reqs",  # vLLM
    b"reached its prefill token backlog limit": "max_num_queued_tokens",
    b"request queue is full": "max_queued_requests",  # SGLang
}
_NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+", re.ASCII)


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> str | None:
    """Why a service that works refuses a request for now: "HTTP 429"; None for any other answer.

    A status 503 without a word of admission control and without a time to come back is an outage.

    Args:
        headers: by name in lower case.
    """
    if status == TOO_MANY_REQUESTS:
        return "HTTP 429"
    if status != UNAVAILABLE:
        return None
    limit = next((limit for words, limit in ADMISSION_CONTROL.items() if words in body), None)
    if limit is not None:
        return f"HTTP 503, admission control by {limit}"
    return None if retry_after_s(headers, 0.0) is None else "HTTP 503 with Retry-After"


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """How long a service asks the client to wait; None without a valid header.

    `retry-after-ms` outranks `Retry-After`, as in OpenAI's clients. A date counts from the header `Date`, because the
    clocks of server and client may differ. A date in the past means no wait.

    Args:
        headers: by name in lower case.
        now_s: Unix time, for an answer without `Date`.
    """
    if (pause_ms := _number(headers.get("retry-after-ms", ""))) is not None:
        return pause_ms / 1e3
    text = headers.get("retry-after", "")
    if (pause_s := _number(text)) is not None:
        return pause_s
    if (until_s := _date_s(text)) is None:
        return None
    answered_s = _date_s(headers.get("date", ""))
    return max(0.0, until_s - (now_s if answered_s is None else answered_s))


def _number(text: str) -> float | None:
    """A number of at least 0; None for any other text."""
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def _date_s(text: str) -> float | None:
    """Unix time of a date in one of the three forms of RFC 9110, all of them in GMT; None for any other text."""
    from datetime import UTC, datetime
    from email.utils import parsedate_tz

    try:
        parts = parsedate_tz(text)
        return None if parts is None else datetime(*parts[:6], tzinfo=UTC).timestamp() - (parts[9] or 0)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
