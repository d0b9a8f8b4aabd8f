"""What JUnit keeps of a test, as flat (name, value) pairs for dashboards; the run folder has the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from math import isfinite

from pytest_llmperf.metrics import Metric, Unit, find, is_metric
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import VERSION
from pytest_llmperf.results.emulated_ground import distance
from pytest_llmperf.results.ended_test import STORED, EndedTest
from pytest_llmperf.results.measurement import Measurement, failures_text

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
