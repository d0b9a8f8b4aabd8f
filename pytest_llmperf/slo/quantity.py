"""Limits: a comparison, a number and a unit that fits the metric."""

from __future__ import annotations

import re
from decimal import Decimal
from math import isfinite
from unicodedata import normalize

from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.slo.text import Cursor, Token

_SIGNS = {"<=": Comparison.AT_MOST, "≤": Comparison.AT_MOST, ">=": Comparison.AT_LEAST, "≥": Comparison.AT_LEAST,
          "==": Comparison.EQUAL}
_NEAR_SIGNS = {"<": "<=", ">": ">=", "=": "==", "!=": "=="}

_TIME_MS = {"s": "1000", "ms": "1", "us": "0.001", "µs": "0.001", "μs": "0.001"}
#: Unit of the metric → spelling → factor, as exact decimals: 0.07 must be 7 % and nothing beside it.
_NS_PER_MS = 1e6
_FACTORS: dict[Unit, dict[str, str]] = {
    Unit.MS: _TIME_MS,
    Unit.S: {name: str(Decimal(factor) / 1000) for name, factor in _TIME_MS.items()},
    Unit.SHARE: {"%": "0.01", "": "1"},
    Unit.REQUESTS_PER_S: {"/s": "1", "req/s": "1", "requests/s": "1"},
    Unit.CONVERSATIONS_PER_S: {"/s": "1", "conversations/s": "1"},
    Unit.TOKENS_PER_S: {"/s": "1", "tok/s": "1", "tokens/s": "1"},
    Unit.COUNT: {"": "1"},
    Unit.TOKENS_PER_STEP: {"": "1"},
    Unit.J: {"J": "1", "kJ": "1000"},
    Unit.J_PER_TOKEN: {"J": "1", "mJ": "0.001", "J/token": "1", "mJ/token": "0.001"},
}
_EXAMPLES = {Unit.MS: "500ms", Unit.S: "60s", Unit.SHARE: "60% or 0.6", Unit.REQUESTS_PER_S: "3.5/s",
             Unit.CONVERSATIONS_PER_S: "0.7/s", Unit.TOKENS_PER_S: "1200/s", Unit.COUNT: "0",
             Unit.TOKENS_PER_STEP: "2.3", Unit.J: "500 J", Unit.J_PER_TOKEN: "0.5 J"}
_CURRENCY = re.compile(r"[A-Z]{3}")


def read_comparison(cursor: Cursor) -> tuple[Comparison, Token]:
    """The sign that comes next.

    Raises:
        SloError: none of <=, >=, ==.
    """
    token = cursor.next
    if token.text in _SIGNS:
        return _SIGNS[cursor.take().text], token
    near = f"; did you mean {_NEAR_SIGNS[token.text]!r}?" if token.text in _NEAR_SIGNS else ""
    raise cursor.error(token, f"expected '<=', '>=' or '==', found {token.shown}{near}")


def read_number(cursor: Cursor) -> tuple[Decimal, Token]:
    """A number of at least 0.

    Raises:
        SloError: something else, or a number beyond what a float holds.
    """
    if cursor.next.text in ("-", "+"):
        raise cursor.error(cursor.next, "a limit is a plain number of at least 0, without a sign")
    token = cursor.expect_kind("number", "a number")
    if not isfinite(float(token.text)):
        raise cursor.error(token, "that is too large a number to limit anything")
    return Decimal(token.text), token


def read_quantity(cursor: Cursor, metric: str, unit: Unit) -> float:
    """A limit in the metric's unit; a bare 0 needs none.

    Raises:
        SloError: no number, a unit that does not fit, or a share above 1.
    """
    number, token = read_number(cursor)
    unit_token = cursor.next
    written = _read_unit(cursor)
    factor = _FACTORS[unit].get(written)
    if factor is None and not (number == 0 and not written):
        complaint = f"{written!r} is not one" if written else "there is none"
        written_alike = dict.fromkeys(normalize("NFKC", name) for name in _FACTORS[unit] if name)
        spellings = ", ".join(map(repr, written_alike)) or "no unit"
        raise cursor.error(unit_token if written else token,
                           f"{metric} takes {spellings}, and {complaint}; write it like {_EXAMPLES[unit]}")
    value = number * Decimal(factor or "1")
    if not isfinite(float(value) * _NS_PER_MS):  # latencies are compared in nanoseconds
        raise cursor.error(token, "that is too large a number to limit anything")
    if unit is Unit.SHARE and value > 1:
        raise cursor.error(token, f"{metric} is a share, at most 100 %; did you mean {token.text}%?"
                           if not written and number <= 100 else f"{metric} is a share, at most 100 %")
    return float(value)


def read_cost(cursor: Cursor, metric: str) -> tuple[float, str]:
    """A limit on a cost and its currency.

    Raises:
        SloError: no number, or no currency of three capital letters.
    """
    number, token = read_number(cursor)
    word = cursor.next
    currency = _read_unit(cursor)
    if not _CURRENCY.fullmatch(currency):
        raise cursor.error(word if currency else token, f"{metric} takes a currency of three capital letters; write it "
                                                        "like 0.50 USD")
    return float(number), currency


def _read_unit(cursor: Cursor) -> str:
    """"ms", "%", "/s", "req/s" or "" where none is written."""
    if cursor.accept("%"):
        return "%"
    name = cursor.take().text if cursor.next.kind == "name" else ""
    if cursor.accept("/"):
        return f"{name}/{cursor.expect_kind('name', 's after the slash').text}"
    return name
