"""A check as JSON, in run files and in JUnit: its numbers for programs, and the same as sentences for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf, isfinite
from typing import Any, TypeVar, cast, get_type_hints

from pytest_llmperf.errors import echo
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.cause import Cause, Facts, Problem
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.sentences import (
    basis_text,
    estimate_text,
    interval_text,
    limit_text,
    problem_text,
    reason_text,
)
from pytest_llmperf.results.strict_json import Node
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval

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
        "cause": result.cause,
        "facts": _facts_json(result.facts),
        "problems": [{"cause": problem.cause, "facts": _facts_json(problem.facts)} for problem in result.problems],
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
        name = error.args[0]
        if isinstance(name, Cause):
            return f"{name.value!r} is not a cause that belongs here"
        return f"a sentence of this check needs the fact {echo(name)}, and the fact is missing"
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
                           cause=Cause.STATED if texts.get("reason") else None,
                           facts={"texts": texts, "text": texts.get("reason", "")})
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
        cause=None if cause is None else _member(_CAUSES, fields["cause"], "cause"),
        facts=_facts(fields["facts"]),
        problems=tuple(_problem(problem) for problem in fields["problems"].items()),
    )


T = TypeVar("T")
_COMPARISONS = {comparison.value: comparison for comparison in Comparison}
_CAUSES = {cause.value: cause for cause in Cause}
_TYPES = get_type_hints(Facts)


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
    return Problem(_member(_CAUSES, fields["cause"], "cause"), _facts(fields["facts"]))


def _facts(node: Node) -> Facts:
    """The facts that this version knows; a newer version may have added others."""
    facts: dict[str, Any] = {}
    for name, value in node.table().items():
        if name in _TYPES:
            facts[name] = _fact(value, _TYPES[name])
    return cast(Facts, facts)


def _fact(node: Node, expected: object) -> object:
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


def _facts_json(facts: Facts) -> dict[str, object]:
    return {name: None if isinstance(value, float) and not isfinite(value) else value for name, value in facts.items()}


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
