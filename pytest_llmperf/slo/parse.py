"""Parses the texts of requirements.

SLO        ttft_p99 <= 500ms · error_rate == 0 · goodput(ttft <= 500ms, tpot <= 60ms) >= 4/s
claim      ttft_p50(b) / ttft_p50(a) >= 3
ratio      ttft_p50(disk) / ttft_p50(memory), with a limit or without
mechanism  prefix_cache_hit_rate(a) >= 60% · prefill_tokens(a.decode) == 0 · transferred_bytes(a) >= 0.95 * expected
"""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal
from math import isfinite
from unicodedata import normalize

from pytest_llmperf.errors import SloError
from pytest_llmperf.metrics.goodput import GOODPUT_FAMILIES
from pytest_llmperf.metrics.registry import Metric, Source, find, suggestion
from pytest_llmperf.metrics.server import COUNTED, POOLS
from pytest_llmperf.metrics.units import Direction, Unit
from pytest_llmperf.model.event import PHASES
from pytest_llmperf.slo.model import Claim, Comparison, LatencyLimit, Mechanism, Ratio, Side, Slo
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


_PHASE_RATIO = re.compile(rf"\(\s*({'|'.join(PHASES)})\s*\)\s*/")
TRANSFERRED = "transferred_bytes"
_EXACT_UNITS = (Unit.COUNT, Unit.SHARE)
_RATIO_UNITS = (
    Unit.MS, Unit.S, Unit.REQUESTS_PER_S, Unit.CONVERSATIONS_PER_S, Unit.TOKENS_PER_S, Unit.TOKENS_PER_STEP, Unit.J,
    Unit.J_PER_TOKEN, Unit.COST,
)  # fmt: skip


def parse_check(text: str) -> Slo | tuple[Claim | Ratio, tuple[str, str]]:
    """Parse a text of `perf.check`: an SLO, an SLO of a phase, or a ratio of two phases as `parse_ratio` gives it.

    Raises:
        SloError: the text is not valid. The message gives the problem, the position and the most similar valid text.
    """
    if isinstance(text, str) and _PHASE_RATIO.search(text) is not None:
        return parse_ratio(text, PHASES)
    return parse_slo(text, PHASES)


def parse_slo(text: str, phases: Collection[str] = ()) -> Slo:
    """Parse an SLO's text, such as `ttft_p99 <= 500ms`.

    Args:
        text: the SLO.
        phases: parts of the runs that an SLO may name, as in `error_rate(during) <= 60%`; none without events.

    Raises:
        SloError: the text is not valid. The message gives the problem, the position and the most similar valid text.
    """
    cursor = Cursor(text, "SLO")
    metric, token = _read_metric(cursor)
    phase: str = ""
    within: tuple[LatencyLimit, ...] = ()
    if metric.limited:
        within = _read_within(cursor, metric)
    elif metric.source is Source.CLIENT and cursor.following.text in phases:
        phase = _read_named(cursor, metric, phases)
    elif metric.has_pools and cursor.following.text in POOLS:
        metric = find(f"{metric.name}.{_read_named(cursor, metric, POOLS)}")
    elif cursor.next.text == "(":
        raise cursor.error(cursor.next, "an SLO is about one measurement; sides like (a) belong in a claim")
    comparison, sign = read_comparison(cursor)
    _check_sign(cursor, metric, comparison, sign)
    _check_direction(cursor, metric, comparison, sign)
    metric, limit, currency = _read_bound(cursor, metric, comparison)
    cursor.expect_kind("end", f"nothing after the limit of {token.text}")
    return Slo(metric.name, comparison, limit, within, text, currency, phase)


def parse_claim(text: str) -> Claim | Mechanism:
    """Parse a claim's text: a ratio between sides A and B, or a mechanism check of one side.

    Raises:
        SloError: the text is not valid. The message gives the problem, the position and the most similar valid text.
    """
    cursor = Cursor(text, "claim")
    metric, token = _read_metric(cursor)
    if metric.limited:
        raise cursor.error(token, f"{metric.name} is not compared between sides; use one of its latencies")
    side, pool = _read_side(cursor, metric)
    if pool:
        metric = find(f"{metric.name}.{pool}")
    elif cursor.accept("/"):
        return _read_ratio(cursor, metric, token, side)
    comparison, sign = read_comparison(cursor)
    _check_sign(cursor, metric, comparison, sign)
    metric, limit, currency = _read_bound(cursor, metric, comparison)
    cursor.expect_kind("end", "nothing after the limit")
    return Mechanism(metric.name, side, comparison, limit, text, currency)


def parse_ratio(text: str, sides: Collection[str]) -> tuple[Claim | Ratio, tuple[str, str]]:
    """Parse a ratio between two named sides, with or without a limit.

    Returns:
        The requirement, in which "a" replaces the first name and "b" the second, and the two names in text order.

    Raises:
        SloError: the text is not valid. The message gives the problem, the position and the most similar valid text.
    """
    cursor = Cursor(text, "ratio")
    metric, token = _read_metric(cursor)
    _check_comparable(cursor, metric, token)
    top = _read_named(cursor, metric, sides)
    cursor.expect("/", f"and the other side, as in {metric.name}({top}) / {metric.name}(…)")
    _check_same(cursor, metric)
    bottom = _read_named(cursor, metric, [side for side in sides if side != top])
    ratio = Ratio(metric.name, "a", text)
    return ratio if cursor.next.kind == "end" else _read_limit(cursor, ratio), (top, bottom)


def _read_ratio(cursor: Cursor, metric: Metric, token: Token, numerator: Side) -> Claim:
    """The rest of a claim, from after its slash."""
    _check_comparable(cursor, metric, token)
    _check_same(cursor, metric)
    side_token = cursor.next
    denominator, pool = _read_side(cursor, metric)
    if pool:
        raise cursor.error(side_token, "a ratio is of whole deployments; limit the pool of one side instead")
    if denominator == numerator:
        raise cursor.error(side_token, f"both sides are {numerator!r}; one must be 'a' and one 'b'")
    return _read_limit(cursor, Ratio(metric.name, numerator, cursor.text))


def _read_limit(cursor: Cursor, of: Ratio) -> Claim:
    comparison, sign = read_comparison(cursor)
    if comparison is Comparison.EQUAL:
        raise cursor.error(sign, "two measurements are never exactly equal; use '<=' or '>='")
    ratio, number = read_number(cursor)
    if ratio == 0:
        raise cursor.error(number, "a ratio is above 0")
    cursor.expect_kind("end", "nothing after the ratio, which has no unit")
    return Claim(of.metric, of.numerator, comparison, float(ratio), cursor.text)


def _read_metric(cursor: Cursor) -> tuple[Metric, Token]:
    token = cursor.expect_kind("name", "a metric")
    try:
        return find(token.text), token
    except SloError as unknown:
        raise cursor.error(token, str(unknown)) from None


def _read_side(cursor: Cursor, metric: Metric) -> tuple[Side, str]:
    """The side in brackets, and the pool after it, as in (a.decode); "" without a pool."""
    name = metric.name
    if not cursor.accept("("):
        raise cursor.error(cursor.next, f"a side is missing: a claim compares sides, as in {name}(b) / {name}(a) >= 3; "
                                        f"mechanism= limits one side, as in {name}(a); perf.check limits a measurement")
    token = cursor.take()
    if token.text not in ("a", "b"):
        raise cursor.error(token, f"a side is 'a' or 'b', found {token.shown}")
    pool = ""
    if cursor.accept("."):
        pool_token = cursor.take()
        pool = pool_token.text
        if pool not in POOLS or not metric.has_pools:
            has = f"the pools are {' and '.join(POOLS)}" if metric.has_pools else f"{name} is of whole deployments"
            raise cursor.error(pool_token, f"{has}, found {pool_token.shown}")
    cursor.expect(")", "after the side")
    return "a" if token.text == "a" else "b", pool


def _read_named(cursor: Cursor, metric: Metric, sides: Collection[str]) -> str:
    cursor.expect("(", f"and a side, as in {metric.name}({next(iter(sides), 'a')})")
    token = cursor.take()
    if token.text not in sides:
        raise cursor.error(token, f"no other side is named {token.shown}{suggestion(token.text, sides)}")
    cursor.expect(")", "after the side")
    return token.text


def _read_within(cursor: Cursor, metric: Metric) -> tuple[LatencyLimit, ...]:
    cursor.expect("(", f"and limits, as in {metric.name}(ttft <= 500ms, tpot <= 60ms)")
    limits: list[LatencyLimit] = []
    while True:
        token = cursor.expect_kind("name", "a latency")
        if token.text not in GOODPUT_FAMILIES:
            raise cursor.error(token, f"{token.text!r} is not a latency of which each request has one"
                               f"{suggestion(token.text, GOODPUT_FAMILIES)}")
        if token.text in (limit.family for limit in limits):
            raise cursor.error(token, f"{token.text} is limited twice")
        comparison, sign = read_comparison(cursor)
        if comparison is not Comparison.AT_MOST:
            raise cursor.error(sign, "a good request stays below its limits; did you mean '<='?")
        limits.append(LatencyLimit(token.text, read_quantity(cursor, token.text, Unit.MS)))
        if not cursor.accept(","):
            cursor.expect(")", "after the limits")
            return tuple(limits)


def _check_comparable(cursor: Cursor, metric: Metric, token: Token) -> None:
    if metric.name not in COUNTED and (metric.unit not in _RATIO_UNITS or metric.limited):
        raise cursor.error(token, f"{metric.name} can be 0, so it has no ratio; limit each side, as in "
                           f"'{metric.name}(a) >= …'")


def _check_same(cursor: Cursor, metric: Metric) -> None:
    """Read the second metric of a ratio, which must equal the first metric."""
    other, token = _read_metric(cursor)
    if other.name != metric.name:
        raise cursor.error(token, f"a claim compares one metric on two sides; did you mean {metric.name}?")


def _read_bound(cursor: Cursor, metric: Metric, comparison: Comparison) -> tuple[Metric, float, str]:
    """Read a limit, and the currency of a cost. A limit that no value can miss is refused, such as a share of at most
    100 %.

    Returns:
        The metric, its limit and the currency. `transferred_bytes` with a limit such as `0.95 * expected` becomes
        `transferred_ratio`.
    """
    if metric.unit is Unit.COST:
        return metric, *read_cost(cursor, metric.name)
    token = cursor.next
    limit = read_quantity(cursor, metric.name, metric.unit)
    if metric.name.startswith(TRANSFERRED) and cursor.accept("*"):
        cursor.expect("expected", f"as in {TRANSFERRED}(a) >= 0.95 * expected")
        return find(metric.name.replace(TRANSFERRED, "transferred_ratio")), limit, ""
    always = {Comparison.AT_MOST: 1.0, Comparison.AT_LEAST: 0.0}.get(comparison)
    if metric.unit is Unit.SHARE and limit == always:
        meant = "; did you mean 1%?" if limit and not token.text.startswith("100") else ""
        raise cursor.error(token, f"{metric.name} is a share, so this always holds{meant}")
    return metric, limit, ""


def _check_sign(cursor: Cursor, metric: Metric, comparison: Comparison, sign: Token) -> None:
    if comparison is Comparison.EQUAL and metric.unit not in _EXACT_UNITS:
        raise cursor.error(sign, f"{metric.name} is measured, never exact; '==' is for counts and shares")


def _check_direction(cursor: Cursor, metric: Metric, comparison: Comparison, sign: Token) -> None:
    """Refuse a limit that only a bad server meets. The server's own metrics may be bounded from both sides."""
    wrong = {Direction.LOWER: Comparison.AT_LEAST, Direction.HIGHER: Comparison.AT_MOST}.get(metric.direction)
    if metric.source is not Source.SERVER and comparison is wrong:
        right = "<=" if comparison is Comparison.AT_LEAST else ">="
        raise cursor.error(sign, f"{metric.name} is better when {metric.direction.value}; did you mean {right!r}?")
