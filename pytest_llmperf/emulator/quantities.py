"""Quantities in options: 5 %, ÷4, 50 ms."""

from __future__ import annotations

import re
from contextlib import suppress
from math import isfinite

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class UsageError(ValueError):
    """The command line asks for what cannot be; the text says why and what can be. Exit code 2."""


def fraction(text: str, where: str, *, least: float = -1.0, most: float = 1e6) -> float:
    """Read "5%" or "0.05" (a sign is allowed).

    Raises:
        UsageError: the text is no number, or the number is outside [least, most].
    """
    text = text.strip()
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise UsageError(f"{where}: {text!r} is neither a percentage (5%) nor a number (0.05).") from None
    if not isfinite(value) or not least <= value <= most:
        raise UsageError(f"{where}: {text!r} is not between {least:g} and {most:g}.")
    return value


def divisor(text: str, where: str) -> float:
    """Read "/4" as 4.0.

    Raises:
        UsageError: the text is no division by a number of at least 1.
    """
    try:
        value = float(text.strip().removeprefix("/"))
    except ValueError:
        value = 0.0
    if not text.strip().startswith("/") or not isfinite(value) or value < 1:
        raise UsageError(f"{where}: {text!r} is no division like /4.")
    return value


def duration_s(text: str, where: str) -> float:
    """Read "50ms", "2s", "100us" as seconds.

    Raises:
        UsageError: the text is no duration.
    """
    matched = re.fullmatch(r"(.+?)(us|ms|s)", text.strip())
    with suppress(ValueError):
        if matched is not None and isfinite(value := float(matched[1])) and value >= 0:
            return value * _UNITS_S[matched[2]]
    raise UsageError(f"{where}: {text.strip()!r} is no duration like 50ms.")
