"""The overview of a report: the title with counts and builds, tiles, and a row per test with the deciding check."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from pytest_llmperf.metrics import Unit, find
from pytest_llmperf.report.html.session_facts import SessionFacts
from pytest_llmperf.report.html.words import metric_in_words
from pytest_llmperf.report.table import cell_text
from pytest_llmperf.report.watch import duration
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import VERSION
from pytest_llmperf.results.ended_test import (
    GOOD,
    SKIPPED,
    counts,
    deciding_limit,
    headroom,
    room,
    severity,
    subject_text,
)
from pytest_llmperf.results.measurement import Measurement, TestResult, failures_text
from pytest_llmperf.results.sentences import ENGINES, estimate_text, interval_text, limit_text, reason_text

MOST_NAMES = 2
CSV_HEAD = ("test", "verdict", "metric", "measured", "limit", "headroom", "interval", "before", "after", "reason")
#: Metrics of the tiles, with their names.
TILES = {"output_throughput": "Output throughput", "ttft_p50": "TTFT, median", "tpot_p50": "TPOT, median",
         "prefix_cache_hit_rate": "Prefix cache hit rate", "lmcache_hit_rate": "LMCache hit rate",
         "max_rate_proven": "Highest proven rate"}  # fmt: skip
#: Metrics of the table of all measurements, with their names.
COLUMNS = {"request_throughput": "requests/s", "output_throughput": "output tokens/s", "ttft_p50": "TTFT p50",
           "ttft_p99": "TTFT p99", "tpot_p50": "TPOT p50", "itl_p99": "ITL p99", "prefix_cache_hit_rate": "hit rate",
           "error_rate": "failed"}  # fmt: skip


def headline(tests: Sequence[TestResult], session: SessionFacts) -> str:
    """"9 of 33 FAIL · H200 · vLLM 0.26.0 · driver 580.159.04 · 14 min"."""
    conditions = [measurement.conditions for test in tests for measurement in test.measurements]
    hardware = _few((_hardware(each.get("hardware", "")) for each in conditions), "hardware kinds")
    engines = _few((_build(each) for each in conditions), "builds")
    drivers = _few((each.get("driver", "") for each in conditions if each.get("driver") != "none"), "drivers")
    parts = (_outcome(tests), hardware, engines, drivers and f"driver {drivers}", _length(session.duration_s))
    return " · ".join(filter(None, parts))


def _outcome(tests: Sequence[TestResult]) -> str:
    bad = [test.ending for test in tests if test.outcome not in GOOD]
    shown = counts(bad or [test.ending for test in tests]).replace("_", " ")
    if ", " in shown:
        return f"{shown} of {len(tests)}"
    count, outcome = shown.split(" ", 1)
    return f"{count} of {len(tests)} {outcome}"


def _hardware(kind: str) -> str:
    """A hardware kind in its maker's spelling: "emulated H200"."""
    return " ".join(word if word == "emulated" else word.upper() for word in kind.split())


def _build(conditions: Mapping[str, str]) -> str:
    engine = conditions.get("engine", "")
    version = conditions.get(VERSION, "").partition("+emulated")[0]
    return f"{ENGINES.get(engine, engine)} {version}".strip()


def _few(names: Iterable[str], what: str) -> str:
    """The names if there are at most two, else the number of names."""
    unique = [name for name in dict.fromkeys(names) if name]
    return " and ".join(unique) if len(unique) <= MOST_NAMES else f"{len(unique)} {what}"


def _length(duration_s: float | None) -> str:
    if duration_s is None:
        return ""
    return duration(duration_s) if duration_s < 120 else f"{duration_s / 60:.0f} min"


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of the session: name, value, unit, and a note on the measurements behind the value."""

    name: str
    value: str
    unit: str
    note: str


def tiles(tests: Sequence[TestResult]) -> Iterator[Tile]:
    """Requests and tokens of the session, then the main metrics: of both sides of one claim, or as a range."""
    measurements = [measurement for test in tests for measurement in test.measurements]
    sides = [measurement.side for measurement in measurements]
    served, failed, tokens = map(sum, zip(*map(_totals, measurements), strict=True)) if measurements else (0, 0, 0)
    if served or failed:
        reasons = failures_text(run for measurement in measurements for run in measurement.runs)
        yield Tile("Requests", f"{served + failed:,.0f}", "",
                   f"{failed:,.0f} failed{f' ({reasons})' if reasons else ''}, {tokens:,.0f} output tokens")
    for metric, name in TILES.items():
        means = (measurement.value_with_failures(metric) for measurement in measurements if not measurement.tried)
        if values := [value for value in means if value is not None and isfinite(value)]:
            unit = find(metric).unit
            both = sides == ["a", "b"] and len(values) == 2
            shown = f"A {unit.number(values[0])} · B {unit.number(values[1])}" if both else _range(unit, values)
            note = "one measurement" if len(values) == 1 else f"over {len(values)} measurements"
            yield Tile(name, shown, unit.value, "" if both else note)


def measured_values(measurement: Measurement) -> tuple[str, ...]:
    """The mean of each of the `COLUMNS` over the runs; "" for a missing metric."""
    return tuple(_column_text(name, measurement.value_with_failures(name)) for name in COLUMNS)


def _column_text(metric: str, value: float | None) -> str:
    if value is None:
        return ""
    unit = find(metric).unit
    return unit.number(value) if COLUMNS[metric].endswith("/s") else unit.show(value)


def _totals(measurement: Measurement) -> tuple[float, float, float]:
    """Served requests, failed requests and output tokens of all runs."""
    served = failed = tokens = 0.0
    for run, metrics in zip(measurement.runs, measurement.metrics, strict=True):
        names = ("duration_s", "request_throughput", "output_throughput", "error_rate")
        duration_s, requests, output, errors = (metrics.value(name) or 0.0 for name in names)
        served += round(requests * duration_s)
        by_rate = round(requests * duration_s * errors / (1 - errors)) if errors < 1 else 0  # of an older file
        failed += sum(run.failures.values()) or by_rate
        tokens += round(output * duration_s)
    return served, failed, tokens


def _range(unit: Unit, values: Sequence[float]) -> str:
    low, high = unit.number(min(values)), unit.number(max(values))
    return high if low == high else f"{low} – {high}"


@dataclass(frozen=True, slots=True)
class OverviewRow:
    """One test in the overview.

    Args:
        anchor: where the page has the test.
        reason: excuse, owner, and why the deciding check did not pass or what ended the test early; "" for a PASS.
        check: the deciding check; None for a test that an error ended early, and for a test without checks.
        metric, measured, limit, headroom, bar: of this check.
    """

    anchor: str
    test: TestResult
    reason: str
    check: CheckResult | None = None
    metric: str = ""
    measured: str = ""
    limit: str = ""
    headroom: str = ""
    bar: Bar | None = None


def row_of(test: TestResult, anchor: str) -> OverviewRow:
    """The overview's row of a test, with the deciding check."""
    check = test.ending.deciding
    if check is None:
        return OverviewRow(anchor, test, test.ending.decided_by)
    reason = "; ".join(filter(None, (*test.ending.notes, reason_text(check))))
    return OverviewRow(anchor, test, reason, check, subject_text(check), estimate_text(check),
                       deciding_limit_text(check), headroom_text(check), bar_of(check))


def deciding_limit_text(check: CheckResult) -> str:
    """The limit of a check; of a comparison the margin that its verdict rests on."""
    margin = deciding_limit(check)
    if margin is None or check.unit is None or "negligible" not in check.facts:
        return limit_text(check)
    sign = "" if check.comparison is None else check.comparison.sign
    return f"{sign} {check.unit.show(margin)} {'tolerated' if margin == check.limit else 'negligible'}"


def headroom_text(check: CheckResult) -> str:
    """"+31 %" of the limit; of a change in percentage points."""
    share, limit = headroom(check), deciding_limit(check)
    if share is None or limit is None:
        return ""
    if check.unit in (Unit.CHANGE, Unit.POINTS):
        return f"{100 * share * abs(limit):+.1f} pp"
    if abs(share) >= 10:
        return f"{share:+.0f}×"
    return f"{100 * share:+.{0 if abs(share) >= 0.01 else 1}f} %"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar from the limit in the middle: to the right with headroom, to the left beyond the limit; all in percent.

    Args:
        left, width: of the bar.
        low, high: ends of the confidence interval; None without an interval.
        good: whether the value is on the good side.
    """

    left: float
    width: float
    good: bool
    low: float | None = None
    high: float | None = None


def bar_of(check: CheckResult) -> Bar | None:
    """The bar of a check; None without a distance to the limit."""
    share = headroom(check)
    if share is None:
        return None
    at, interval = _place(share), check.interval
    ends = [room(check, end) for end in (interval.low, interval.high)] if interval is not None else []
    places = sorted(_place(end) for end in ends if end is not None)
    low, high = places if len(places) == 2 else (None, None)
    return Bar(min(at, 50), abs(at - 50), share >= 0, low, high)


def _place(share: float) -> float:
    """A headroom of ±100 % and more reaches the end of the bar."""
    return round(50 + 50 * min(max(share, -1), 1), 1)


@dataclass(frozen=True, slots=True)
class CauseGroup:
    """Tests that ended alike for one cause: a sentence, and their rows."""

    outcome: str
    cause: str
    rows: tuple[OverviewRow, ...]


def groups(rows: Sequence[OverviewRow]) -> list[CauseGroup]:
    """Rows by verdict, worst first; bad verdicts by cause, the most frequent cause first."""
    rows_by_key: dict[tuple[str, str], list[OverviewRow]] = {}
    for row in rows:
        rows_by_key.setdefault((row.test.outcome, _cause(row)), []).append(row)
    merged: dict[tuple[str, str], list[OverviewRow]] = {}
    for (outcome, cause), alike in rows_by_key.items():
        merged.setdefault((outcome, cause if len(alike) > 1 else ""), []).extend(alike)
    made = [CauseGroup(*key, tuple(alike)) for key, alike in merged.items()]
    return sorted(made, key=lambda group: (-severity(group.outcome), not group.cause, -len(group.rows)))


def _cause(row: OverviewRow) -> str:
    """The cause of a bad verdict in words that equal causes share; "" for a good verdict."""
    if row.test.outcome in GOOD and row.test.outcome != SKIPPED:
        return ""
    check = row.check
    if check is None or check.cause is None:
        return re.sub(r"\d+", "…", row.test.reason)
    words = check.cause.name.replace("_", " ")
    metrics = dict.fromkeys(re.findall(r"[a-z][a-z0-9_]+(?=\(| |$)", check.metric))
    return f"{' and '.join(map(metric_in_words, metrics))}: {words}" if metrics else words


def csv_text(rows: Sequence[OverviewRow]) -> str:
    """The overview as CSV with a line per test."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for row in rows:
        interval = "" if row.check is None else interval_text(row.check)
        levels = (None, None) if row.check is None else (row.check.before, row.check.after)
        before, after = ("" if level is None else f"{level:.6g}" for level in levels)
        cells = (row.test.test, row.test.outcome, row.metric, row.measured, row.limit, row.headroom, interval,
                 before, after, row.reason)
        writer.writerow(map(cell_text, cells))
    return out.getvalue()
