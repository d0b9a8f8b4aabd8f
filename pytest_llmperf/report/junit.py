"""A run read from the JUnit file that our plugin wrote: tests, verdicts, metrics; no requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from pytest_llmperf.errors import UsageError
from pytest_llmperf.report.properties import JUDGED, SEED
from pytest_llmperf.results.check import worst
from pytest_llmperf.results.check_json import check_from
from pytest_llmperf.results.measurement import Measurement, Run, TestResult
from pytest_llmperf.results.reader import margins_from, numbers, read_run
from pytest_llmperf.results.strict_json import Node, parse
from pytest_llmperf.stats.prior import Margins

REPAIR = "Write the file anew: pytest --junitxml=FILE."
_RUN = re.compile(r"run(-?\d{1,18})")
#: What JUnit has of a test that did not pass, what ended it last first, and what that is called.
ENDS = {"error": "", "failure": "failed", "skipped": "skipped"}
OURS = re.compile(r"(?:Failed: )?llmperf (?:ERROR: )?")
IN_FIXTURE = re.compile(r'failed on (?:setup|teardown) with "(.*)"', re.DOTALL)  # pytest's own words around the reason
Property = tuple[str, str]


def read_release(path: Path) -> tuple[TestResult, ...]:
    """The tests of a run folder or of a JUnit file.

    The last execution of a re-run test counts. Of several copies of one test (`--count`) the worst verdict counts.

    Raises:
        UsageError: the path is neither a run folder nor a JUnit file, or none of its tests used llmperf.
        BaselineError: the content is invalid.
    """
    if not path.is_file():
        return _one_each(read_run(path))
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, LookupError, ValueError, OSError) as error:
        raise UsageError(f"{path}: this is neither a run folder nor a JUnit file: {error}.") from error
    test_by_id = _one_each([test for case in _last(root) if (test := _test(case, path)) is not None])
    if not test_by_id:
        raise UsageError(f"{path}: no test of this JUnit file was measured by llmperf of this version. {REPAIR}")
    return test_by_id


def _one_each(tests: Iterable[TestResult]) -> tuple[TestResult, ...]:
    """One result per test: the copy with the worst verdict."""
    found = {test.test: test for test in sorted(tests, key=lambda test: test.verdict.severity)}
    return tuple(found[name] for name in sorted(found))


def _last(root: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Of each item of a session its last entry: a re-run has one of its own, and so has a failed test's teardown."""
    for suite in root.iter("testsuite"):
        yield from {(case.get("classname"), case.get("name")): case for case in suite.findall("testcase")}.values()


def _test(case: ElementTree.Element, path: Path) -> TestResult | None:
    """None for a test that did not use llmperf, or was skipped before it measured."""
    each = [(element.get("name", ""), element.get("value", "")) for element in case.iter("property")]
    property_by_name = dict(each)
    test = property_by_name.get("llmperf.test")
    if test is None:
        return None
    checks = [value for name, value in each if re.fullmatch(r"llmperf\.result\d+", name)]
    origin = f"{path}: {test}"
    stored_test = TestResult(
        test=test,
        complete=True,
        error=None,
        measurements=tuple(_measurements(each, origin)),
        checks=tuple(check_from(_json(text, origin)) for text in checks),
    )
    stored_verdict, error = property_by_name.get("llmperf_verdict"), _ended(case)
    if stored_verdict in (stored_test.verdict.value, worst(stored_test.checks).value) or (
        stored_verdict is None and error is None
    ):
        return stored_test  # whatever else failed in its fixtures' teardown
    if not stored_test.measurements and case.find("skipped") is not None:
        return None
    return replace(stored_test, complete=False, error=error)


def _ended(case: ElementTree.Element) -> str | None:
    """Why a test case failed, was skipped or had an error, in the words of the run folder; None for a passed case."""
    for tag, word in ENDS.items():
        if (element := case.find(tag)) is not None:
            message = element.get("message", "")
            reason = inner[1] if (inner := IN_FIXTURE.fullmatch(message)) else message
            ours = OURS.match(reason)
            return reason[ours.end():] if ours else ": ".join(filter(None, (word, message)))
    return None


def _measurements(each: Sequence[Property], origin: str) -> Iterator[Measurement]:
    numbers = sorted({int(match[1]) for name, _ in each if (match := re.match(r"llmperf\.(\d{1,18})\.", name))})
    for number in numbers:
        prefix = f"llmperf.{number}."
        properties = [(name.removeprefix(prefix), value) for name, value in each if name.startswith(prefix)]
        yield _measurement(dict(properties), properties, origin)


def _measurement(named: Mapping[str, str], own: Sequence[Property], origin: str) -> Measurement:
    runs = [(int(match[1]), value) for name, value in own if (match := _RUN.fullmatch(name))]
    engine = named.get("engine", "unknown")
    return Measurement(
        engine=engine,
        workload=named.get("workload", "unknown"),
        conditions=_json(named.get("conditions", "{}"), origin).texts(),
        runs=tuple(_run(number, _json(text, origin), engine) for number, text in runs),
        primaries=tuple(node.text() for node in _json(named.get("primaries", "[]"), origin).items()),
        side=named.get("side", ""),
        margins=dict(_margins(_json(named.get("margins", "{}"), origin))),
    )


def _margins(node: Node) -> Iterator[tuple[str, Margins]]:
    for metric, both in node.table().items():
        limits = [limit for one in both.items() if (limit := one.number_or_none()) is not None]
        if len(limits) != 2:
            both.refuse("two numbers belong here: negligible and tolerated")
        yield metric, margins_from(both, *limits)


def _run(number: int, node: Node, engine: str) -> Run:
    """Older files have the seed in the property's name instead."""
    fields = node.table()
    metrics = {name: value.number_or_none() for name, value in fields.items() if name not in (SEED, JUDGED)}
    seed = fields[SEED].integer() if SEED in fields else number
    return Run.of_values(seed, 0, metrics, numbers(fields, JUDGED), engine=engine)


def _json(text: str, origin: str) -> Node:
    return parse(text.encode(), origin, REPAIR)
