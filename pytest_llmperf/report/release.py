"""Compares two runs, test by test: better, worse, unchanged or unknown.

A primary metric is compared as with a baseline of one session (`stats.shift`): per seed, within its margins, with the
prior for the sd between sessions. Failed requests count as infinitely slow. If the test of the later run sets margins,
these margins apply. All comparisons of a report share one error probability of 1 %. The result is provisional; the
verdicts of each run itself take precedence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import isinf

from pytest_llmperf.errors import SloError
from pytest_llmperf.judging.baseline_comparison import SEARCHED
from pytest_llmperf.judging.change import judge_sessions
from pytest_llmperf.metrics.registry import Metric, find
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import (
    changed_arguments,
    formula_versions,
    is_of_build,
    requested_flags,
    unrecorded_conditions,
)
from pytest_llmperf.results.ended_test import UNDECIDED
from pytest_llmperf.results.measurement import Measurement, TestResult, failures_text
from pytest_llmperf.results.sentences import change, change_text, limit_text
from pytest_llmperf.stats.decision import SUITE_ALPHA

# Another release may have another engine, driver or flags; another of these measures something else.
MUST_AGREE = (
    "hardware", "gpu", "gpu_count", "cpu", "cpu_cores", "url", "model", "weights", "workload", "warm_up", "treatment",
    "search",
)  # fmt: skip
GREEN = (Verdict.PASS, Verdict.IMPROVED)
NOT_THERE = "gone, not run, or it failed before it could report"  # a crash leaves no verdict in JUnit
WITHOUT_BASELINE = ("ttft_p50", "tpot_mean")
#: Larger changes are not shown as a number: 10 is +1000 %.
MOST_SHOWN = 10.0
WORDS = {Verdict.FAIL: "worse", Verdict.IMPROVED: "better", Verdict.PASS: "same", Verdict.INCONCLUSIVE: "undecided"}
Pair = tuple[Measurement, Measurement]


class Trend(Enum):
    """How the result of a test changed."""

    WORSE = "worse"
    BETTER = "better"
    UNKNOWN = "unknown"
    STAYED = "stayed"
    NEW = "new"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of one measurement.

    Args:
        metric: name of the metric.
        before, after: the two values that `change` is computed from, with unit: means of the compared runs on the
            metric's scale. Without a comparison means over the runs; if failed requests make a mean infinite, the
            number of failures.
        change, interval: change and its interval, with unit. Without a comparison `interval` is "", and `change` gives
            the reason, or is "" if the reason is unknown.
        verdict: FAIL for worse, IMPROVED for better, PASS for unchanged, INCONCLUSIVE for undecided.
        primary: whether the metric counts for the trend of the test.
        power: of an undecided comparison, which change it could detect and what further runs would add; else "".
        limit: the margins; "" without a comparison.
    """

    metric: str
    before: str
    after: str
    change: str
    interval: str
    verdict: Verdict
    primary: bool = True
    power: str = ""
    limit: str = ""


@dataclass(frozen=True, slots=True)
class ComparedTest:
    """One test in both runs.

    Args:
        test: id of the test.
        trend: how the result of the test changed.
        before, after: the result in each run; None if the run does not contain the test.
        reason: reason of the trend, in one line; "" if `changes` shows the reason.
        changes: of the primary metrics.
        differing_conditions: fields of the build and conditions that changed and may: name, before, after.
    """

    test: str
    trend: Trend
    before: TestResult | None
    after: TestResult | None
    reason: str = ""
    changes: tuple[Change, ...] = ()
    differing_conditions: tuple[tuple[str, str, str], ...] = ()

    @property
    def verdicts(self) -> str:
        """"PASS → FAIL", or the one verdict of both runs; "–" for a run without the test."""
        was, now = ("–" if test is None else test.outcome for test in (self.before, self.after))
        return was if was == now else f"{was} → {now}"

    @property
    def powers(self) -> list[str]:
        """What each undecided comparison of a primary metric could detect."""
        return [f"{change.metric}: {change.power}" for change in self.changes if change.primary and change.power]


def compare_runs(
    before: Sequence[TestResult], after: Sequence[TestResult], *, others: bool = False
) -> list[ComparedTest]:
    """Each test of either run, sorted by test id.

    Args:
        others: whether to compare non-primary metrics as well, which never count.
    """
    old, new = ({test.test: test for test in tests} for tests in (before, after))
    both = sorted(old.keys() & new.keys())
    judged = sum(len(primaries_of(candidate)) for name in both for candidate in _candidates(new[name])) or 1
    compared = [_compare(old[name], new[name], SUITE_ALPHA / judged, others=others) for name in both]
    compared += [ComparedTest(name, Trend.NEW, None, new[name], new[name].reason) for name in new.keys() - old.keys()]
    compared += [ComparedTest(name, Trend.GONE, old[name], None, NOT_THERE) for name in old.keys() - new.keys()]
    return sorted(compared, key=lambda test: test.test)


def _candidates(test: TestResult) -> list[Measurement]:
    """The measurements under test: all but side B of a claim (its reference) and the rates that a search tried."""
    return [measurement for measurement in test.measurements if measurement.side != "b" and not measurement.tried]


def _parts(test: TestResult) -> list[dict[bool, Measurement]]:
    """One dict per claim or other measurement. Key False: the candidate (side A). Key True: side B of a claim.

    A claim that ended early has one side only."""
    parts: list[dict[bool, Measurement]] = []
    for measurement in (measurement for measurement in test.measurements if not measurement.tried):
        if measurement.side == "b" and parts and [part.side for part in parts[-1].values()] == ["a"]:
            parts[-1][True] = measurement
        else:
            parts.append({measurement.side == "b": measurement})
    return parts


def _pairs(before: TestResult, after: TestResult) -> list[Pair]:
    """Measurements that both runs have: the candidates, or side B if a claim has no side A in one of the runs."""
    both = zip(_parts(before), _parts(after), strict=False)
    return [(old[side], new[side]) for old, new in both for side in sorted(old.keys() & new.keys())[:1]]


def primaries_of(measurement: Measurement) -> tuple[str, ...]:
    """Names of the metrics that count."""
    usual = SEARCHED if measurement.searched else WITHOUT_BASELINE
    return measurement.primaries or tuple(name for name in usual if measurement.value_with_failures(name) is not None)


def _compare(before: TestResult, after: TestResult, alpha: float, *, others: bool) -> ComparedTest:
    pairs = _pairs(before, after)
    obstacle = _obstacle(before, after, pairs)
    judged = [pair for pair in pairs if pair[1].side != "b" and not obstacle]
    changes = tuple(change for pair in judged for change in changes_of(*pair, alpha, others=others))
    trend, reason = _trend(before, after, obstacle, changes)
    differing = tuple(row for pair in pairs for row in _differing_conditions(*pair))
    return ComparedTest(before.test, trend, before, after, reason, changes, tuple(dict.fromkeys(differing)))


def _obstacle(before: TestResult, after: TestResult, pairs: Sequence[Pair]) -> str:
    for when, test in (("before", before), ("now", after)):
        if (test.outcome in UNDECIDED and before.outcome != after.outcome) or test.verdict is Verdict.ERROR:
            return f"{test.outcome} {when}: {test.reason}"
    counts = len(_parts(before)), len(_parts(after))
    if counts[0] != counts[1]:
        return f"{counts[0]} measurements before, {counts[1]} now"
    if len(pairs) < counts[0]:
        return "a claim ended after one side before, and after the other now"
    for old, new in pairs:
        unknown = unrecorded_conditions(old.conditions, new.conditions)
        for name in (name for name in MUST_AGREE if name not in unknown):
            was, now = old.conditions.get(name, "absent"), new.conditions.get(name, "absent")
            if was != now:
                if name == "workload":  # the conditions have its digest alone
                    was, now = changed_arguments(old.workload, new.workload) or (was, now)
                return f"{name} differs: {was} before, {now} now"
    return ""


def _trend(before: TestResult, after: TestResult, obstacle: str, changes: Sequence[Change]) -> tuple[Trend, str]:
    verdicts = {change.verdict for change in changes if change.primary}
    still = after.reason if after.verdict not in GREEN else ""
    failed, fails = (test.verdict is Verdict.FAIL for test in (before, after))
    rules = (
        (bool(obstacle), Trend.UNKNOWN, obstacle),
        (fails and not failed, Trend.WORSE, still),
        (Verdict.FAIL in verdicts, Trend.WORSE, still),
        (bool(before.checks) and not after.checks, Trend.UNKNOWN, "it checks nothing now"),
        (failed and after.verdict in GREEN, Trend.BETTER, ""),
        (Verdict.IMPROVED in verdicts, Trend.BETTER, still),
        (after.verdict is Verdict.INCONCLUSIVE or Verdict.INCONCLUSIVE in verdicts, Trend.UNKNOWN, still),
    )
    return next(((trend, reason) for holds, trend, reason in rules if holds), (Trend.STAYED, still))


def changes_of(
    before: Measurement, after: Measurement, alpha: float, *, others: bool = False
) -> list[Change]:
    """The change of each primary metric of a measurement.

    Args:
        alpha: error probability of one comparison.
        others: whether to compare non-primary metrics as well, which never count.
    """
    judged = []
    primaries = primaries_of(after)
    names = dict.fromkeys([*primaries, *(after.runs[0].metrics.values if others and after.runs else ())])
    for name in names:
        try:
            metric = find(name)
        except SloError:  # of another version
            continue
        judged.append(_change(metric, before, after, alpha, primary=name in primaries))
    return judged


def _change(
    metric: Metric, before: Measurement, after: Measurement, alpha: float, *, primary: bool
) -> Change:
    was, now = (_value_text(metric, side) for side in (before, after))
    if _formula(metric, before) != _formula(metric, after):
        return Change(metric.name, was, now, "another formula", "", Verdict.INCONCLUSIVE, primary)
    try:
        result = judge_sessions(metric, before, after, alpha)
    except ValueError:  # missing, without an end, 0, or no seed in common: nothing to compare
        same = {value for side in (before, after) for value in side.values_with_failures(metric.name)} == {0}
        return Change(metric.name, was, now, "", "", Verdict.PASS if same else Verdict.INCONCLUSIVE, primary)
    was, now = (metric.unit.show(value or 0.0) for value in (result.before, result.after))
    limits = (result.interval.low, result.interval.high) if result.interval else ()
    return Change(metric.name, was, now, change_text(result), " … ".join(change(result, limit) for limit in limits),
                  result.verdict, primary, _power(result) if result.verdict is Verdict.INCONCLUSIVE else "",
                  f"{limit_text(result)} tolerated")


def _power(result: CheckResult) -> str:
    """"smallest detectable change +8.2 %; with 5 more runs a side +6.4 %"."""
    facts = result.numbers
    if "deciding_runs" in facts:
        return f"undecided below {facts['deciding_runs']} runs a side, and there are {facts['runs']}. Make more runs"
    text = f"smallest detectable change {_shown_change(result, facts['smallest_detectable'])}"
    if "further_runs" in facts:
        then = _shown_change(result, facts["detectable_then"])
        return f"{text}; with {facts['further_runs']} more runs a side {then}"
    return (f"{text}; more runs do not lower it, because two sessions differ by {100 * facts['session_sd']:.1f} % (sd, "
            "assumed). Measure both builds in turn: pytest --reference ENGINE=PLACE")


def _shown_change(result: CheckResult, value: float) -> str:
    return f"above {change(result, MOST_SHOWN)}" if value > MOST_SHOWN else change(result, value)


def _formula(metric: Metric, side: Measurement) -> str | None:
    """Formula version of one metric. Versions are compared per metric, so a release that adds a metric leaves all other
    metrics comparable."""
    return formula_versions(side.conditions).get(metric.formula_id.partition("/")[0].rpartition(".")[0])


def _value_text(metric: Metric, side: Measurement) -> str:
    value = side.value_with_failures(metric.name)
    if value is None:
        return "–"
    if isinf(value):
        reasons = failures_text(side.runs)
        why = f" ({reasons})" if reasons else ""
        return f"infinite: {_value_text(find('error_rate'), side)} of requests failed{why}"
    return metric.unit.show(value)


def _differing_conditions(before: Measurement, after: Measurement) -> list[tuple[str, str, str]]:
    """Fields of the build first, then conditions."""
    names = sorted((before.conditions.keys() | after.conditions.keys()) - {"formulas", *MUST_AGREE})
    flags = requested_flags(before.conditions, after.conditions)
    names.sort(key=lambda name: not is_of_build(name, flags))
    each = ((name, before.conditions.get(name, "absent"), after.conditions.get(name, "absent")) for name in names)
    return [row for row in each if row[1] != row[2]]
