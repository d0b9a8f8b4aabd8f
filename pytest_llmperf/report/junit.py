"""The tests of a JUnit file that our plugin wrote: each from the run file that the JUnit file names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from pytest_llmperf.bounded_file import JSON_LIMIT_BYTES, MIB, read_file
from pytest_llmperf.errors import UsageError, echo
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.ended_test import OUTCOMES, STORED, UNDECIDED
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.results.reader import read_run, read_test

REPAIR = "Write the file anew: pytest --junitxml=FILE."
#: What JUnit has of a test that did not pass, what ended it last first, and what that is called.
ENDS = {"error": "", "failure": "failed", "skipped": "skipped"}
OURS = re.compile(r"(?:Failed: )?llmperf (?:ERROR: )?")
IN_FIXTURE = re.compile(r'failed on (?:setup|teardown) with "(.*)"', re.DOTALL)  # pytest's own words around the reason


def read_release(path: Path) -> tuple[TestResult, ...]:
    """The tests of a run folder or of a JUnit file.

    A test of a JUnit file has its measurements from the run file that the JUnit file names: under that path, or in a
    run folder beside the JUnit file. Where the run file is in neither place, the test has its verdict alone. The last
    execution of a re-run test counts. Of several copies of one test (`--count`) the worst verdict counts.

    Raises:
        UsageError: the path is neither a run folder nor a JUnit file, or none of its tests used llmperf.
        BaselineError: a run file is invalid.
    """
    if not path.is_file():
        return _one_each(read_run(path))
    try:
        root = _parsed(read_file(path))
    except (ElementTree.ParseError, LookupError, ValueError, OSError) as error:
        raise UsageError(f"{path}: this is neither a run folder nor a JUnit file: {echo(str(error))}. "
                         "Name one.") from error
    test_by_id = _one_each([test for case in _last(root) if (test := _test(case, path)) is not None])
    if not test_by_id:
        raise UsageError(f"{path}: no test of this JUnit file was measured by llmperf of this version. {REPAIR}")
    return test_by_id


class _Builder(ElementTree.TreeBuilder):
    def doctype(self, *_: object) -> None:
        raise ValueError("it declares a document type, whose entities could expand to any size")


def _parsed(data: bytes) -> ElementTree.Element:
    """The top of an XML file. An element or an attribute takes up to 200 bytes of memory.

    Raises:
        ValueError: the file would take too much memory, or declares entities.
    """
    if 200 * (data.count(b"<") + data.count(b"=")) > JSON_LIMIT_BYTES:
        raise ValueError(f"its elements would take more than {JSON_LIMIT_BYTES // MIB} MiB of memory")
    return ElementTree.fromstring(data, ElementTree.XMLParser(target=_Builder()))


def _one_each(tests: Iterable[TestResult]) -> tuple[TestResult, ...]:
    """One result per test: the copy with the worst verdict."""
    test_by_name = {test.test: test for test in sorted(tests, key=lambda test: test.ending.severity)}
    return tuple(test_by_name[name] for name in sorted(test_by_name))


def _last(root: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Of each item of a session its last entry: a re-run has one of its own, and so has a failed test's teardown."""
    for suite in root.iter("testsuite"):
        yield from {(case.get("classname"), case.get("name")): case for case in suite.findall("testcase")}.values()


def _test(case: ElementTree.Element, path: Path) -> TestResult | None:
    """None for a test that did not use llmperf, and in files of older versions for a test that measured nothing."""
    property_by_name = {element.get("name", ""): element.get("value", "") for element in case.iter("property")}
    test, verdict = (property_by_name.get(f"llmperf.{name}") for name in ("test", "verdict"))
    if test is None:
        return None
    run_file = _run_file(property_by_name.get("llmperf.run_file", ""), path)
    if run_file is None:
        stored_test = TestResult(test, True, None, (), _verdict_alone(verdict, property_by_name))
    else:
        stored_test = read_test(run_file)
    if verdict in OUTCOMES:
        outcome = STORED if "llmperf.stored" in property_by_name else verdict
        error = property_by_name.get("llmperf.decided_by") or _ended(case)
        decided = outcome not in UNDECIDED or any(check.verdict.value == outcome for check in stored_test.checks)
        return replace(stored_test, ended=outcome, complete=decided, error=None if decided else error,
                       owner=property_by_name.get("llmperf.owner", ""),
                       excuse=property_by_name.get("llmperf.excuse", ""))
    error = _ended(case)
    if not stored_test.measurements and case.find("skipped") is not None:
        return None
    return replace(stored_test, complete=error is None, error=error)


def _run_file(named: str, path: Path) -> Path | None:
    """Where the run file lies: as named, or in a copy of its run folder beside the JUnit file."""
    *_, run, tests, name = ("", "", "", *Path(named).parts)
    beside = path.parent
    places = (Path(named), *(beside / folder / run / tests / name for folder in ("", "runs", ".llmperf/runs")))
    return next((place for place in places if named and place.is_file()), None)


def _verdict_alone(verdict: str | None, property_by_name: dict[str, str]) -> tuple[CheckResult, ...]:
    """The deciding check as a text, without its numbers. An ERROR has no check here: JUnit has the reason."""
    stored_verdict, reason = Verdict.__members__.get(verdict or ""), property_by_name.get("llmperf.decided_by")
    if stored_verdict in (None, Verdict.ERROR) or reason is None:
        return ()
    return (CheckResult.stated(reason, stored_verdict, "" if stored_verdict is Verdict.PASS else reason),)


def _ended(case: ElementTree.Element) -> str | None:
    """Why a test case failed, was skipped or had an error, in the words of the run folder; None for a passed case."""
    for tag, word in ENDS.items():
        if (element := case.find(tag)) is not None:
            message = element.get("message", "")
            reason = inner[1] if (inner := IN_FIXTURE.fullmatch(message)) else message
            ours = OURS.match(reason)
            return reason[ours.end():] if ours else ": ".join(filter(None, (word, message)))
    return None
