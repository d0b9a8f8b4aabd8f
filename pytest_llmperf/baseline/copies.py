"""Copies of a test that one session ran, each in a worker of its own: together they are one measurement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.conditions import fingerprint_of
from pytest_llmperf.results.fresh import FreshMeasurement, FreshRun, FreshTest


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement with its test, and that test's id as files know it."""

    test: FreshTest
    fresh: FreshMeasurement
    owner: str


def copies_by_name(cases: Sequence[Case]) -> dict[str, list[Case]]:
    """The copies of each measurement of a test."""
    copies: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        copies[case.fresh.name].append(case)
    return copies


def merge_copies(cases: Sequence[Case], counting: Sequence[Case]) -> Case:
    """One case for all copies: what any of them has against it is against all.

    Args:
        counting: those whose runs count; a run that two of them hold counts once.
    """
    runs: list[FreshRun] = []
    for case in counting:
        runs += [run for run in case.fresh.runs if run not in runs]
    test = replace(
        counting[0].test,
        checks=tuple(check for case in cases for check in case.test.checks),
        failed_first=tuple(execution_end for case in cases for execution_end in case.test.failed_first),
    )
    return replace(counting[0], test=test, fresh=replace(counting[0].fresh, runs=tuple(runs)))


def improved_metrics(cases: Sequence[Case]) -> set[str]:
    """Metrics that a check of every copy has proven to be better."""
    proven = [{check.metric for check in case.test.checks if check.verdict is Verdict.IMPROVED} for case in cases]
    return set.intersection(*proven)


def differing_conditions(cases: Sequence[Case], across: Collection[str]) -> list[str]:
    """Conditions in which copies differ and may not, each with its values; their runs cannot be pooled."""
    fingerprints = [fingerprint_of(case.fresh.conditions) for case in cases]
    values = {
        name: sorted({fingerprint.get(name, "absent") for fingerprint in fingerprints})
        for name in set().union(*fingerprints) - {*across}
    }
    return [f"{name}: {' and '.join(each)}" for name, each in sorted(values.items()) if len(each) > 1]
