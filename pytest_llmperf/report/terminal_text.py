"""Kept runs as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_llmperf.report.metric_rows import replica_rows
from pytest_llmperf.report.release import WORDS, ComparedTest
from pytest_llmperf.report.table import aligned, table, value_text
from pytest_llmperf.results.ended_test import counts
from pytest_llmperf.results.measurement import Measurement, TestResult


def overview(tests: Sequence[TestResult]) -> str:
    """A line a test with the check that decided it, worst first, and how many came to which outcome."""
    ordered = sorted(tests, key=lambda test: -test.ending.severity)
    rows = aligned([(test.outcome, test.test, test.ending.decided_by) for test in ordered])
    lines = [line for row, test in zip(rows, ordered, strict=True) for line in (row, _reason_line(test)) if line]
    return "\n".join([*lines, counts(test.ending for test in ordered)])


def _reason_line(test: TestResult) -> str:
    return f"    {test.reason}" if test.reason not in ("", test.ending.decided_by) else ""


def text_of_test(test: TestResult) -> str:
    """Everything about one test but its requests."""
    return "\n".join(_test_lines(test))


def _test_lines(test: TestResult) -> Iterator[str]:
    yield f"{test.outcome}: {test.test}"
    if test.ending.error:
        yield test.ending.error
    if test.checks:
        yield table(test.checks)
    for number, measurement in enumerate(test.measurements, start=1):
        yield ""
        yield f"{measurement.side.upper() or number}: {measurement.engine}"
        yield f"   {measurement.workload}"
        if measurement.alone:
            yield f"   The server ran alone: {measurement.alone}"
        yield from ("   " + line for line in aligned(sorted(measurement.conditions.items())))
        yield from ("   " + line for line in aligned(_metrics(measurement)))
        yield from ("   " + line for line in aligned(replica_rows(measurement)))
        yield from (f"   {profile}" for profile in test.profiles if profile.measurement == number)


def _metrics(measurement: Measurement) -> list[tuple[str, ...]]:
    """A row a metric that any run has, a column a run."""
    runs = measurement.runs
    names = dict.fromkeys(name for run in runs for name, value in run.metrics.values.items() if value is not None)
    each = enumerate(runs, start=1)
    head = ("metric", *(f"run {number}: seed {run.seed}, start {run.start_id}" for number, run in each))
    return [head, *((name, *(value_text(name, run.metrics.values.get(name)) for run in runs)) for name in names)]


def comparison_text(compared: ComparedTest) -> str:
    """One test in two runs."""
    return "\n".join(_comparison_lines(compared))


def _comparison_lines(compared: ComparedTest) -> Iterator[str]:
    yield f"{compared.trend.value.upper()}: {compared.test}: {compared.verdicts}"
    if compared.reason:
        yield f"    {compared.reason}"
    if compared.differing_conditions:
        yield from ("    " + line for line in aligned([("changed", "before", "after"), *compared.differing_conditions]))
    if compared.changes:
        head = ("metric", "before", "after", "change", "90 % CI", "")
        rows = [
            (change.metric, change.before, change.after, change.change, change.interval,
             WORDS.get(change.verdict, "") if change.primary else "")
            for change in compared.changes
        ]  # fmt: skip
        yield from ("    " + line for line in aligned([head, *rows]))
        yield from (f"    {text}" for text in compared.powers)
