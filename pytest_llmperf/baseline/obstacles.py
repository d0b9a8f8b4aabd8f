"""Why runs do not become a baseline: never, or not without a person's reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_llmperf.metrics.failed_as_infinite import values_with_failures
from pytest_llmperf.metrics.registry import is_metric
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import Provenance
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import PLANTED
from pytest_llmperf.results.measurement import Measurement, TestResult

REFUSED = (Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE)
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that a person may accept.

    Args:
        text: what it is.
        level: whether accepting it accepts another level of performance, and so moves the anchor.
    """

    text: str
    level: bool = False


def blocking_obstacles(test: TestResult, fresh: Measurement) -> list[str]:
    """Obstacles that no reason can override, because the measurement is unusable as a baseline."""
    return list(_blocking_obstacles(test, fresh))


def _blocking_obstacles(test: TestResult, fresh: Measurement) -> Iterator[str]:
    if test.error is not None:
        yield f"the test ended with an error: {test.error.splitlines()[0] if test.error else 'unknown'}"
    elif not test.complete:
        yield "the test did not reach its end"
    if not fresh.complete or not fresh.runs:
        yield f"the measurement is incomplete, with {len(fresh.runs)} runs"
    names = Counter(measurement.baseline for measurement in test.compared)
    if names[fresh.baseline] > 1:
        yield f"{names[fresh.baseline]} measurements of this test share the baseline name {fresh.baseline!r}; name them"
    if PLANTED in fresh.conditions:
        yield f"a regression was planted: {fresh.conditions[PLANTED]}"
    if not fresh.primaries:
        yield "it names no primary metric"
    for metric in fresh.primaries:
        if not is_metric(metric):
            yield f"this version has no metric {metric!r}"
            continue
        missing = sum(values.get(metric) is None for values in map(values_with_failures, fresh.metrics))
        if missing:
            yield f"{metric} is missing in {missing} of {len(fresh.runs)} runs"


def acceptable_obstacles(
    test: TestResult, fresh: Measurement, provenance: Provenance, *, young: bool = False
) -> list[Obstacle]:
    """Obstacles that follow from the new runs alone, and that a person may accept.

    Args:
        young: whether few sessions are stored. Then an INCONCLUSIVE comparison with them is no obstacle.
    """
    checks = [check for check in test.checks if not (young and is_undecided_comparison(check))]
    obstacles = [
        Obstacle(f"{verdict.value}: {_subjects(checks, verdict)}", level=verdict is Verdict.FAIL)
        for verdict in REFUSED
        if any(check.verdict is verdict for check in checks)
    ]
    if test.failed_executions:
        obstacles.append(Obstacle(f"it did not fail only after {test.failed_executions} execution(s) that did"))
    contended = [run.contended for run in fresh.runs if run.contended is not None]
    if contended:
        obstacles.append(Obstacle(f"contended in {len(contended)} of {len(fresh.runs)} runs: {contended[0]}"))
    if provenance.git_error is not None:
        obstacles.append(Obstacle(f"its commit is unknown: {provenance.git_error}"))
    elif provenance.dirty:
        obstacles.append(Obstacle(f"the working tree differs from commit {provenance.commit}"))
    return obstacles


def is_undecided_comparison(check: CheckResult) -> bool:
    """Whether it is a comparison with a baseline that stayed INCONCLUSIVE; no SLO and no claim."""
    return check.verdict is Verdict.INCONCLUSIVE and check.compares_with_baseline


def _subjects(checks: Sequence[CheckResult], verdict: Verdict) -> str:
    subjects = list(dict.fromkeys(check.subject for check in checks if check.verdict is verdict))
    more = f" and {len(subjects) - SHOWN} more" if len(subjects) > SHOWN else ""
    return ", ".join(subjects[:SHOWN]) + more
