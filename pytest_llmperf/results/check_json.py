"""A check as JSON, in run files and in JUnit: its numbers for programs, and the same as sentences for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from inspect import isabstract
from math import inf, isfinite
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_type_hints

import pytest_llmperf.results.causes  # noqa: F401  every cause by its stored name
from pytest_llmperf.errors import echo
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import BY_NAME, Cause, CheckResult, Facts, Fault, Problem, Stated
from pytest_llmperf.results.sentences import (
    basis_text,
    estimate_text,
    interval_text,
    limit_text,
    problem_text,
    reason_text,
)
from pytest_llmperf.results.strict_json import SMALLEST_NUMBER, Node
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval

#: Where a problem was found; beside the facts of its fault.
PLACE = ("side", "run", "seed")
#: Sentences of a check under their keys. A file with these keys alone was written before checks had numbers.
TEXTS: Mapping[str, Callable[[CheckResult], str]] = {
    "limit": limit_text,
    "measured": estimate_text,
    "interval": interval_text,
    "n": basis_text,
    "reason": reason_text,
}


def check_json(result: CheckResult) -> dict[str, object]:
    """The check as values that JSON can hold; an infinite limit of an interval is null."""
    interval = result.interval
    return {
        "subject": result.subject,
        "verdict": result.verdict.value,
        "metric": result.metric,
        **{key: text(result) for key, text in TEXTS.items()},
        "unit": None if result.unit is None else result.unit.name,
        "comparison": None if result.comparison is None else result.comparison.value,
        "limit_value": result.limit,
        "estimate": result.estimate,
        "before": result.before,
        "after": result.after,
        "low": None if interval is None else _finite(interval.low),
        "high": None if interval is None else _finite(interval.high),
        "confidence": None if interval is None else interval.confidence,
        "effective_n": result.effective_n,
        "cause": None if result.cause is None else result.cause.name,
        "facts": _facts_json(result.numbers),
        "problems": [{"cause": problem.fault.name, "facts": _facts_json({
            **problem.fault.facts,
            **{name: value for name in PLACE if (value := getattr(problem, name)) is not None},
        })} for problem in result.problems],
    }


def wording_error(result: CheckResult) -> str:
    """Why a sentence of the result cannot be formed, such as a missing fact; "" if every sentence can be formed."""
    sentences = [partial(problem_text, problem) for problem in result.problems]
    sentences += [partial(text, result) for text in TEXTS.values()]
    return next(filter(None, map(_error_of, sentences)), "")


def check_from(node: Node) -> CheckResult:
    """A check as a run file or JUnit stores it.

    Raises:
        BaselineError: the value is not a check, or lacks facts that its sentences need.
    """
    result = _check_from(node)
    if error := wording_error(result):
        node.refuse(error)
    return result


def _error_of(sentence: Callable[[], str]) -> str:
    try:
        sentence()
    except KeyError as error:
        return f"a sentence of this check needs the fact {echo(error.args[0])}, and the fact is missing"
    except (AttributeError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        return f"a sentence of this check cannot be formed from its facts: {echo(str(error))}"
    return ""


def _check_from(node: Node) -> CheckResult:
    fields = node.fields(("subject", "verdict"), optional=node.table())
    verdict = _member(Verdict.__members__, fields["verdict"], "verdict")
    metric = fields["metric"].text() if "metric" in fields else ""
    if "facts" not in fields:
        texts = {key: fields[key].text() for key in TEXTS if key in fields}
        return CheckResult(fields["subject"].text(), verdict, metric,
                           cause=Stated(texts["reason"]) if texts.get("reason") else None, facts={"texts": texts})
    unit, comparison, cause = (fields[name].text_or_none() for name in ("unit", "comparison", "cause"))
    return CheckResult(
        subject=fields["subject"].text(),
        verdict=verdict,
        metric=metric,
        unit=None if unit is None else _member(Unit.__members__, fields["unit"], "unit"),
        comparison=None if comparison is None else _member(_COMPARISONS, fields["comparison"], "comparison"),
        limit=fields["limit_value"].number_or_none(),
        estimate=fields["estimate"].number_or_none(),
        # Run files of older versions have the change alone.
        before=fields["before"].number_or_none() if "before" in fields else None,
        after=fields["after"].number_or_none() if "after" in fields else None,
        interval=_interval(fields),
        cause=None if cause is None else _stored(CAUSES, fields),
        facts=cast(Facts, _values(fields["facts"], _FACTS)),
        problems=tuple(_problem(problem) for problem in fields["problems"].items()),
    )


T = TypeVar("T")
C = TypeVar("C", Cause, Fault)
_COMPARISONS = {comparison.value: comparison for comparison in Comparison}
_FACTS = get_type_hints(Facts)
CAUSES = {name: cls for name, cls in BY_NAME.items() if issubclass(cls, Cause) and not isabstract(cls)}
FAULTS = {name: cls for name, cls in BY_NAME.items() if issubclass(cls, Fault) and not isabstract(cls)}


def _member(members: Mapping[str, T], node: Node, what: str) -> T:
    name = node.text()
    if name not in members:
        node.refuse(f"{echo(name)} is no {what}")
    return members[name]


def _interval(fields: Mapping[str, Node]) -> Interval | None:
    confidence = fields["confidence"].number_or_none()
    if confidence is None:
        return None
    low, high = fields["low"].number_or_none(), fields["high"].number_or_none()
    return Interval(-inf if low is None else low, inf if high is None else high, confidence)


def _problem(node: Node) -> Problem:
    fields = node.fields(("cause", "facts"))
    place = _values(fields["facts"], {name: kind for name, kind in get_type_hints(Problem).items() if name in PLACE})
    return Problem(_stored(FAULTS, fields), **place)


def _stored(known: Mapping[str, type[C]], fields: Mapping[str, Node]) -> C:
    """The cause or fault of a stored name, with its facts."""
    cls = _member(known, fields["cause"], "cause that belongs here")
    types, owned = get_type_hints(cls), dataclasses.fields(cls)
    values = _values(fields["facts"], {field.name: types[field.name] for field in owned})
    for field in owned:
        if field.name not in values and field.default is field.default_factory is dataclasses.MISSING:
            fields["facts"].refuse(f"a sentence of this check needs the fact {field.name!r}, and the fact is missing")
    return cls(**values)


def _values(node: Node, types: Mapping[str, object]) -> dict[str, Any]:
    """The facts that this version knows; a newer version may have added others."""
    return {name: _fact(value, types[name]) for name, value in node.table().items() if name in types}


def _fact(node: Node, expected: object) -> object:
    expected = get_args(expected)[0] if isinstance(expected, UnionType) else expected
    if expected is str:
        return node.text()
    if expected is bool:
        return node.flag()
    if expected is int:
        return node.integer()
    if expected is float:
        number = node.number_or_none()
        return inf if number is None else number
    plain = node.value  # lists and tables of texts and numbers
    if not isinstance(plain, list | dict):
        node.refuse("a list or an object belongs here")
    return plain


def _facts_json(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: _fact_json(value) for name, value in facts.items()}


def _fact_json(value: object) -> object:
    """A number that is not finite as null, and a number that is too small for a file, such as a p value, as 0."""
    if not isinstance(value, float):
        return value
    return None if not isfinite(value) else value if abs(value) >= SMALLEST_NUMBER else 0.0


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
