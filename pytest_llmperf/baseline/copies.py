"""Copies of a test (`--count`) that several workers of one session ran. Together they are one measurement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pytest_llmperf.metrics.failed_as_infinite import values_with_failures
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.conditions import fingerprint_of
from pytest_llmperf.results.measurement import Measurement, Run, TestResult


@dataclass(frozen=True, slots=True)
class BaselineCase:
    """A new measurement with its test.

    Args:
        fresh: the measurement of this session, in contrast to the stored baseline.
        owner: id of the test in baseline files.
    """

    test: TestResult
    fresh: Measurement
    owner: str

    @property
    def name(self) -> str:
        """The name of the measurement in its baseline; "" for the only one."""
        return self.fresh.baseline or ""


def copies_by_name(cases: Sequence[BaselineCase]) -> dict[str, list[BaselineCase]]:
    """The copies of each measurement of a test, by the name of the measurement."""
    copies: dict[str, list[BaselineCase]] = defaultdict(list)
    for case in cases:
        copies[case.name].append(case)
    return copies


def merge_copies(cases: Sequence[BaselineCase], counting: Sequence[BaselineCase]) -> BaselineCase:
    """A common case for all copies of a test. An obstacle of one copy is an obstacle for all copies.

    Args:
        counting: copies whose runs count. A run that two copies contain counts once.
    """
    runs: list[Run] = []
    for case in counting:
        runs += [run for run in case.fresh.runs if not any(_same_values(run, other) for other in runs)]
    test = replace(
        counting[0].test,
        checks=tuple(check for case in cases for check in case.test.checks),
        earlier_ends=tuple(end for case in cases for end in case.test.earlier_ends),
    )
    return replace(counting[0], test=test, fresh=counting[0].fresh.with_runs(runs))


def _same_values(run: Run, other: Run) -> bool:
    """Whether two copies of a test hold one and the same run."""
    return (run.seed, run.start_id, run.contended) == (other.seed, other.start_id, other.contended) and (
        values_with_failures(run.metrics) == values_with_failures(other.metrics)
    )


def improved_metrics(cases: Sequence[BaselineCase]) -> set[str]:
    """Metrics that a check of every copy has proven to be better."""
    proven = [{check.metric for check in case.test.checks if check.verdict is Verdict.IMPROVED} for case in cases]
    return set.intersection(*proven)


def differing_conditions(cases: Sequence[BaselineCase], across: Collection[str]) -> list[str]:
    """Conditions in which copies differ and may not, each with its values; their runs cannot be pooled."""
    fingerprints = [fingerprint_of(case.fresh.conditions) for case in cases]
    values = {
        name: sorted({fingerprint.get(name, "absent") for fingerprint in fingerprints})
        for name in set().union(*fingerprints) - {*across}
    }
    return [f"{name}: {' and '.join(each)}" for name, each in sorted(values.items()) if len(each) > 1]
