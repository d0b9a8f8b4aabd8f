"""Runs, comparisons of runs, and stored baselines as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from pytest_llmperf.report.metric_rows import baseline_mean, replica_rows
from pytest_llmperf.report.release import WORDS, ComparedTest
from pytest_llmperf.report.table import aligned, table, value_change_text, value_text
from pytest_llmperf.results.baseline import Baseline, Entry, StoredMeasurement
from pytest_llmperf.results.conditions import changed_arguments
from pytest_llmperf.results.ended_test import counts
from pytest_llmperf.results.levels import session_mean
from pytest_llmperf.results.measurement import Measurement, TestResult

UNCHANGED_PERCENT = 0.05


def overview(tests: Sequence[TestResult]) -> str:
    """A line for each test with its deciding check, worst first, and a line with the number of tests of each
    outcome."""
    ordered = sorted(tests, key=lambda test: -test.ending.severity)
    rows = aligned([(test.outcome, test.test, test.ending.decided_by) for test in ordered])
    lines = [line for row, test in zip(rows, ordered, strict=True) for line in (row, _reason_line(test)) if line]
    return "\n".join([*lines, counts(test.ending for test in ordered)])


def _reason_line(test: TestResult) -> str:
    return f"    {test.reason}" if test.reason not in ("", test.ending.decided_by) else ""


def text_of_test(test: TestResult) -> str:
    """All stored facts about one test, without its requests."""
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
    """A row for each metric that a run has, and a column for each run."""
    runs = measurement.runs
    names = dict.fromkeys(name for run in runs for name, value in run.metrics.values.items() if value is not None)
    each = enumerate(runs, start=1)
    head = ("metric", *(f"run {number}: seed {run.seed}, start {run.start_id}" for number, run in each))
    return [head, *((name, *(value_text(name, run.metrics.values.get(name)) for run in runs)) for name in names)]


def comparison_text(compared: ComparedTest) -> str:
    """The comparison of one test in two run folders."""
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


def baseline_list(entries: Sequence[Entry]) -> list[str]:
    """A line for each measurement: kind, test, number of sessions, date of the latest session, and primary metrics."""
    rows = [("kind", "test", "sessions", "latest", "primary metrics")]
    for entry in entries:
        for name, stored in sorted(entry.baseline.measurements.items()):
            primaries = ", ".join(f"{metric} {value_text(metric, baseline_mean(stored, metric))}"
                                  for metric in stored.primaries)
            rows.append((entry.kind, _measurement_name(entry.baseline.test, name), str(len(stored.sessions)),
                         stored.sessions[-1].date, primaries))
    return aligned(rows)


def baseline_text(entry: Entry) -> Iterator[str]:
    """All facts of one baseline."""
    for name, stored in sorted(entry.baseline.measurements.items()):
        yield f"{_measurement_name(entry.baseline.test, name)} on {entry.kind} ({entry.path})"
        yield from (f"  {line}" for line in aligned(sorted(stored.fingerprint.items())))
        yield ""
        rows: list[tuple[str, ...]] = [("metric", "mean", "lowest session", "highest session", "runs")]
        for metric in sorted(stored.metrics, key=lambda metric: (metric not in stored.primaries, metric)):
            means = [mean for session in stored.sessions if (mean := session_mean(session, metric)) is not None]
            if means:
                star = "*" if metric in stored.primaries else ""
                runs = sum(value is not None for session in stored.sessions for value in session.values(metric))
                levels = (value_text(metric, level) for level in (fmean(means), min(means), max(means)))
                rows.append((metric + star, *levels, str(runs)))
        yield from (f"  {line}" for line in aligned(rows))
        yield "  * judged; the rest is kept for people"


def changes(old: Mapping[str, Baseline], new: Mapping[str, Baseline]) -> Iterator[str]:
    """Differences between two states of the baselines: a line for each measurement that differs, and for each file
    whose test has changed.

    Args:
        old, new: path → baseline.
    """
    for path in sorted(old.keys() | new.keys()):
        if path in old and path in new and old[path].test != new[path].test:
            yield f"changed  {path}  test: {old[path].test} → {new[path].test}"
        old_measurements, after = _measurements(old.get(path)), _measurements(new.get(path))
        for name in sorted(old_measurements.keys() | after.keys()):
            label = f"{path} [{name}]" if name else path
            if name not in after:
                yield f"removed  {label}"
            elif name not in old_measurements:
                yield f"created  {label}  {_sessions_text(after[name])}"
            elif old_measurements[name] != after[name]:
                yield f"changed  {label}  {'; '.join(_differences(old_measurements[name], after[name]))}"


def _measurements(baseline: Baseline | None) -> Mapping[str, StoredMeasurement]:
    return {} if baseline is None else baseline.measurements


def _differences(before: StoredMeasurement, after: StoredMeasurement) -> Iterator[str]:
    yield from _difference_text("no longer judged", before.primaries, after.primaries)
    yield from _difference_text("judged from now on", after.primaries, before.primaries)
    for metric in after.primaries:
        old, new = baseline_mean(before, metric), baseline_mean(after, metric)
        formulas = before.formulas.get(metric), after.formulas.get(metric)
        if old is not None and new is not None and formulas[0] != formulas[1]:
            yield f"formula of {metric}: {formulas[0]} → {formulas[1]}"
        elif old is not None and new is not None and old and abs(new / old - 1) * 100 >= UNCHANGED_PERCENT:
            yield f"{metric} {value_change_text(metric, old, new)} ({100 * (new / old - 1):+.1f} %)"
    old_ids, now = [session.id for session in before.sessions], [session.id for session in after.sessions]
    if len(old_ids) != len(now):
        yield f"{len(old_ids)} → {_sessions_text(after)}"
    else:
        yield from _difference_text("came in", now, old_ids)
        yield from _difference_text("dropped out", old_ids, now)
    for key in sorted(before.fingerprint.keys() | after.fingerprint.keys()):
        values = (before.fingerprint.get(key, "absent"), after.fingerprint.get(key, "absent"))
        if values[0] != values[1]:
            if key == "workload" and before.workload and after.workload:
                values = changed_arguments(before.workload, after.workload) or values
            yield f"{key}: {' → '.join(values)}"
    yield from (
        f"accepted: {session.accepted}" for session in after.sessions if session.accepted and session.id not in old_ids
    )


def _difference_text(what: str, these: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    """"dropped out: a, b": the items of `these` that `others` lacks."""
    if alone := [item for item in these if item not in others]:
        yield f"{what}: {', '.join(alone)}"


def _measurement_name(test: str, name: str) -> str:
    return f"{test} [{name}]" if name else test


def _sessions_text(stored: StoredMeasurement) -> str:
    count = len(stored.sessions)
    return f"{count} session{'s' if count > 1 else ''}"
