"""JUnit: the properties of a test, and the tests of a file that our plugin wrote, each read from its run file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from math import isfinite
from pathlib import Path
from xml.etree import ElementTree

from pytest_llmperf.bounded_file import JSON_LIMIT_BYTES, MIB, read_file
from pytest_llmperf.errors import UsageError, echo
from pytest_llmperf.metrics import Metric, Unit, find, is_metric
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import VERSION
from pytest_llmperf.results.emulated_ground import distance
from pytest_llmperf.results.ended_test import OUTCOMES, STORED, UNDECIDED, EndedTest
from pytest_llmperf.results.measurement import Measurement, TestResult, failures_text
from pytest_llmperf.results.reader import read_run, read_test

#: Metrics of every test that has them, beside those that it judges.
USUAL = (
    "ttft_p50", "ttft_p99", "tpot_mean", "itl_p50", "itl_p99", "e2el_p50", "output_throughput", "request_throughput",
    "error_rate", "prefix_cache_hit_rate", "spec_acceptance_length", "max_rate_proven", "max_rate",
)  # fmt: skip
#: Bytes of all pairs in the file, so that verdict and run file, which the plugin adds, fit into 2 kB.
MOST_BYTES = 1450
MARKUP_BYTES = len('<property name="" value="" />')
LONGEST_TEXT = 120
LONGEST_DECISION = 200
SUFFIXES = {
    Unit.MS: "_ms", Unit.REQUESTS_PER_S: "_requests_per_s", Unit.CONVERSATIONS_PER_S: "_conversations_per_s",
    Unit.TOKENS_PER_S: "_tokens_per_s",
    Unit.CHANGE: "_pct", Unit.POINTS: "_pp",
}  # fmt: skip
_RATIO = re.compile(r"(\w+)\(b\) / \1\(a\)")
REPAIR = "Write the file anew: pytest --junitxml=FILE."
#: What JUnit has of a test that did not pass, what ended it last first, and what that is called.
ENDS = {"error": "", "failure": "failed", "skipped": "skipped"}
OURS = re.compile(r"(?:Failed: )?llmperf (?:ERROR: )?")
IN_FIXTURE = re.compile(r'failed on (?:setup|teardown) with "(.*)"', re.DOTALL)  # pytest's own words around the reason


def properties(
    test: str, measurements: Sequence[Measurement], results: Sequence[CheckResult]
) -> list[tuple[str, str]]:
    """Each quantity has the same name in all tests. All pairs together stay below 2 kB.

    `llmperf.metric.…` are means over the runs of the test's subject: side A of a claim, else the first measurement.
    Shares are 0 … 1, changes are in per cent or percentage points, other numbers have their unit in the name.
    """
    pairs = [("llmperf.test", test)]
    if measurements:
        subject = measurements[0]
        texts = {"hardware": subject.conditions.get("hardware"), "emulated_ground": distance(subject.conditions),
                 "engine_version": subject.conditions.get(VERSION),
                 "engine": subject.engine, "workload": subject.workload}
        texts["failures"] = failures_text(subject.runs)
        pairs += [(f"llmperf.{name}", _cut(text)) for name, text in texts.items() if text]
    pairs += _compared(results)
    if measurements:
        pairs += _metrics(measurements[0], results)
    return list(_that_fit(dict(pairs)))


def outcome_properties(ended: EndedTest) -> dict[str, str]:
    """How a test ended. A baseline that was just stored has a property of its own, beside the verdict NO_BASELINE."""
    decision = replace(ended, stored="", owner="", excuse="").decided_by
    stored = {"llmperf.stored": ended.stored} if ended.outcome == STORED else {}
    notes = {f"llmperf.{name}": _cut(text, LONGEST_DECISION)
             for name, text in (("owner", ended.owner), ("excuse", ended.excuse)) if text}
    return {"llmperf.test": ended.test, "llmperf.verdict": ended.verdict,
            "llmperf.decided_by": _cut(decision, LONGEST_DECISION), **notes, **stored}


def _that_fit(pairs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The first pairs, up to `MOST_BYTES` together."""
    left = MOST_BYTES
    for name, value in pairs.items():
        left -= MARKUP_BYTES + len(name.encode()) + len(escape(value).encode())
        if left < 0:
            return
        yield name, value


def _metrics(subject: Measurement, results: Sequence[CheckResult]) -> Iterator[tuple[str, str]]:
    judged = [name for result in results for name in re.findall(r"\w+", result.metric) if is_metric(name)]
    names = dict.fromkeys([*subject.primaries, *judged, *USUAL])
    values = [(name, subject.value_with_failures(name)) for name in names if is_metric(name)]
    for name, value in values:
        if value is not None and isfinite(value):
            yield f"llmperf.metric.{_with_unit(find(name))}", _number(value)


def _compared(results: Sequence[CheckResult]) -> Iterator[tuple[str, str]]:
    """Values of baselines or reference builds with the change, and ratios of claims; the most severe verdicts first."""
    ordered = sorted((result for result in results if result.estimate is not None),
                     key=lambda result: -result.verdict.severity)
    for result in ordered:
        if match := _RATIO.fullmatch(result.metric):
            yield f"llmperf.ratio.{match[1]}", _number(result.estimate or 0.0)
        if result.before is None or not is_metric(result.metric):
            continue
        metric, change = find(result.metric), SUFFIXES.get(result.unit or Unit.CHANGE, "")
        yield f"llmperf.baseline.{_with_unit(metric)}", _number(result.before or 0.0)
        yield f"llmperf.change.{metric.name}{change}", _number(100 * (result.estimate or 0.0))
        if result.interval is not None:
            yield f"llmperf.change_low.{metric.name}{change}", _number(100 * result.interval.low)
            yield f"llmperf.change_high.{metric.name}{change}", _number(100 * result.interval.high)


def _with_unit(metric: Metric) -> str:
    return metric.name + SUFFIXES.get(metric.unit, "")


def _number(value: float) -> str:
    return f"{value:.6g}"


def _cut(text: str, longest: int = LONGEST_TEXT) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


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
        if not (tests := _one_each(read_run(path))):
            raise UsageError(f"{path}: this run folder has no test that was measured. Run the tests again.")
        return tests
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
    """The last entry of each test of a session: a re-run adds an entry, and so does a failed teardown."""
    for suite in root.iter("testsuite"):
        yield from {(case.get("classname"), case.get("name")): case for case in suite.findall("testcase")}.values()


def _test(case: ElementTree.Element, path: Path) -> TestResult | None:
    """The result of an entry; None for a test that did not use llmperf, and in files of older versions for a test that
    measured nothing."""
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
