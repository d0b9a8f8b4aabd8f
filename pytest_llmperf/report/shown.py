"""Kept runs as plain text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_llmperf.report.kept import KeptMeasurement, KeptTest
from pytest_llmperf.report.markdown import WORDS
from pytest_llmperf.report.release import Compared
from pytest_llmperf.report.table import aligned, table
from pytest_llmperf.report.values import shown


def overview(tests: Sequence[KeptTest]) -> str:
    """A line a test, worst first, and how many came to which verdict."""
    ordered = sorted(tests, key=lambda test: -test.verdict.severity)
    counts = Counter(test.verdict for test in ordered)
    total = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items())
    lines = aligned([(test.verdict.value, test.test) for test in ordered])
    reasons = (f"\n    {test.reason}" if test.reason else "" for test in ordered)
    return "\n".join([*(line + reason for line, reason in zip(lines, reasons, strict=True)), total])


def whole(test: KeptTest) -> str:
    """Everything about one test but its requests."""
    return "\n".join(_whole(test))


def _whole(test: KeptTest) -> Iterator[str]:
    yield f"{test.verdict.value}: {test.test}"
    if test.error:
        yield test.error
    elif not test.complete:
        yield test.reason
    if test.checks:
        yield table(test.checks)
    for number, measurement in enumerate(test.measurements, start=1):
        yield ""
        yield f"{measurement.side.upper() or number}: {measurement.engine}"
        yield f"   {measurement.workload}"
        yield from ("   " + line for line in aligned(sorted(measurement.conditions.items())))
        yield from ("   " + line for line in aligned(_metrics(measurement)))


def _metrics(measurement: KeptMeasurement) -> list[tuple[str, ...]]:
    """A row a metric that any run has, a column a run."""
    runs = measurement.runs
    names = dict.fromkeys(name for run in runs for name, value in run.metrics.items() if value is not None)
    each = enumerate(runs, start=1)
    head = ("metric", *(f"run {number}: seed {run.seed}, start {run.start_id}" for number, run in each))
    return [head, *((name, *(shown(name, run.metrics.get(name)) for run in runs)) for name in names)]


def difference(one: Compared) -> str:
    """One test in two runs."""
    return "\n".join(_difference(one))


def _difference(one: Compared) -> Iterator[str]:
    was, now = (_verdict(side) for side in (one.before, one.after))
    yield f"{one.trend.value.upper()}: {one.test}: {was if was == now else f'{was} → {now}'}"
    if one.reason:
        yield f"    {one.reason}"
    if one.differing:
        yield from ("    " + line for line in aligned([("changed", "before", "after"), *one.differing]))
    if one.changes:
        head = ("metric", "before", "after", "change", "90 % CI", "")
        rows = [
            (change.metric, change.before, change.after, change.change, change.interval,
             WORDS.get(change.verdict, "") if change.primary else "")
            for change in one.changes
        ]  # fmt: skip
        yield from ("    " + line for line in aligned([head, *rows]))


def _verdict(test: KeptTest | None) -> str:
    return "–" if test is None else test.verdict.value
