"""Decides what an update of baselines does, before anything is written. `update_plan` has the types of the decision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from pytest_llmperf.baseline.copies import (
    BaselineCase,
    copies_by_name,
    differing_conditions,
    improved_metrics,
    merge_copies,
)
from pytest_llmperf.baseline.learnt_margins import margin_notes, with_learnt_margins
from pytest_llmperf.baseline.merging import UpdateTerms, merge_measurement
from pytest_llmperf.baseline.obstacles import acceptable_obstacles, blocking_obstacles, is_undecided_comparison
from pytest_llmperf.baseline.paths import bare_test, baseline_path
from pytest_llmperf.baseline.rules import comparable_sessions_on
from pytest_llmperf.baseline.update_plan import Action, Move, PlanEntry, UpdatePlan
from pytest_llmperf.errors import UsageError
from pytest_llmperf.metrics.registry import is_metric
from pytest_llmperf.results.baseline import YOUNG_BELOW, Baseline, StoredMeasurement
from pytest_llmperf.results.conditions import build_changes, comparable_sessions, kind_of
from pytest_llmperf.results.levels import mean_level
from pytest_llmperf.results.measurement import Measurement, TestResult

Mode = Literal["all", "new"]

THERE = "there is one already; --update-baselines takes this session in"
STORED = "this session is stored already"
REPEATED = "session {} has the same values; measure with a different --emulate-seed"
OLDER = "older than the stored sessions"
UNMEASURED = "this session did not measure it; remove it from the file where the name is gone"
ORPHANED: dict[Mode, str] = {
    "all": "its test no longer exists: the file is removed",
    "new": "its test no longer exists; --update-baselines removes the file",
}
UNKNOWN = "left out, as this version has no such metric: {}"
MIXED = "copies of the test ran under different conditions: {}"
CLASH = "{} share this file; rename one of them, or correct \"test\" in the file where the test was moved"
CASE = (
    "its name differs only in case from {}, and some file systems take the two for one file; rename one of the tests. "
    "Where this test was renamed, delete the older file first"
)


def plan(
    tests: Sequence[TestResult],
    existing: Mapping[str, Baseline],
    terms: UpdateTerms,
    mode: Mode,
    collected: Collection[str] | None = None,
) -> UpdatePlan:
    """Decide what an update does.

    Args:
        tests: what ran in this session.
        existing: path → baseline, of every kind that ran.
        terms: provenance, a person's reason, margins.
        mode: "all" takes in everything that ran and is valid, "new" only what has no baseline.
        collected: ids of all tests that exist; None if only a part was collected (-k, a path, an error in
            collecting): then nothing is orphaned.

    Raises:
        UsageError: the reason is empty.
    """
    if terms.accept is not None and not terms.accept.strip():
        raise UsageError('--accept "": say why; the reason is stored beside the values.')
    entries: list[PlanEntry] = []
    files: dict[str, Baseline | None] = {}
    ran = _by_path(tests)
    spellings = _spellings({*ran, *existing})
    for path, cases in ran.items():
        if path not in existing and len(spellings[path.casefold()]) > 1:
            like_it = " and ".join(sorted(spellings[path.casefold()] - {path}))
            entries.append(PlanEntry(Action.REFUSED, path, reasons=(CASE.format(like_it),)))
            continue
        lines, baseline = _plan_file(path, cases, existing.get(path), terms, mode)
        entries += lines
        if baseline is not None:
            files[path] = baseline
    others = {path: baseline for path, baseline in existing.items() if path not in ran}
    orphans = [path for path, baseline in others.items() if _orphaned(path, baseline, collected)]
    entries += [PlanEntry(Action.ORPHANED, path, reasons=(ORPHANED[mode],)) for path in orphans]
    if mode == "all":
        files |= dict.fromkeys(orphans)
    files = with_learnt_margins(files, existing, ran, terms.rules, terms.provenance.host)
    entries = [margin_notes(entry, existing.get(entry.path), files[entry.path]) if entry.path in files else entry
               for entry in entries]
    entries.sort(key=lambda entry: (entry.path, entry.measurement))
    return UpdatePlan(tuple(entries), files, len(others) - len(orphans))


def _spellings(paths: Collection[str]) -> dict[str, set[str]]:
    """Groups of paths that differ only in case, by their folded path."""
    spellings: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        spellings[path.casefold()].add(path)
    return spellings


def _by_path(tests: Sequence[TestResult]) -> dict[str, list[BaselineCase]]:
    cases_by_path: dict[str, list[BaselineCase]] = defaultdict(list)
    for test in tests:
        for fresh in test.compared:
            kind = kind_of(fresh.conditions)
            cases_by_path[baseline_path(test.test, kind)].append(BaselineCase(test, fresh, bare_test(test.test, kind)))
    return cases_by_path


def _plan_file(
    path: str, cases: Sequence[BaselineCase], stored_tests: Baseline | None, terms: UpdateTerms, mode: Mode
) -> tuple[list[PlanEntry], Baseline | None]:
    """The plan entries of one file, and the new content of the file; None for an unchanged file."""
    owners = {case.owner for case in cases} | ({stored_tests.test} if stored_tests is not None else set())
    if len(owners) > 1 or len({case.test.test for case in cases}) > 1:
        names = sorted(owners if len(owners) > 1 else {case.test.test for case in cases})
        return [PlanEntry(Action.REFUSED, path, reasons=(CLASH.format(" and ".join(names)),))], None
    stored_measurements = dict(stored_tests.measurements) if stored_tests is not None else {}
    after, entries = dict(stored_measurements), list[PlanEntry]()
    measured = copies_by_name(cases)
    young = all(_has_few_sessions(stored_measurements.get(name), terms) for name in measured)
    for name, copies in measured.items():
        lines, stored = _decide(path, copies, stored_measurements.get(name), terms, mode, young=young)
        entries += lines
        if stored is not None:
            after[name] = stored
    unmeasured = sorted(stored_measurements.keys() - measured.keys())
    entries += [PlanEntry(Action.KEPT, path, name, reasons=(UNMEASURED,)) for name in unmeasured]
    return entries, Baseline(cases[0].owner, after) if after != stored_measurements else None


def _decide(
    path: str,
    copies: Sequence[BaselineCase],
    stored: StoredMeasurement | None,
    terms: UpdateTerms,
    mode: Mode,
    *,
    young: bool,
) -> tuple[list[PlanEntry], StoredMeasurement | None]:
    """The plan entries of one measurement, and the baseline to store; None to store no baseline.

    Args:
        copies: all measurements of this name in this session. Copies that can never be stored get one entry per set
            of reasons; all other copies share one entry.
        young: whether an INCONCLUSIVE comparison is no obstacle, because few sessions are stored.
    """
    name = copies[0].name
    if stored is not None and mode == "new":
        return [PlanEntry(Action.KEPT, path, name, reasons=(THERE,))], None
    never = [tuple(blocking_obstacles(case.test, case.fresh)) for case in copies]
    lines = [PlanEntry(Action.REFUSED, path, name, reasons=reasons) for reasons in dict.fromkeys(never) if reasons]
    counting = [case for case, reasons in zip(copies, never, strict=True) if not reasons]
    if not counting:
        return lines, None
    if apart := differing_conditions(counting, terms.rules.compare_across):
        return [*lines, PlanEntry(Action.REFUSED, path, name, reasons=(MIXED.format("; ".join(apart)),))], None
    entry, result = _merge(path, merge_copies(copies, counting), improved_metrics(counting), stored, terms, young=young)
    return [*lines, entry], result


def _merge(
    path: str,
    case: BaselineCase,
    better: Collection[str],
    stored: StoredMeasurement | None,
    terms: UpdateTerms,
    *,
    young: bool,
) -> tuple[PlanEntry, StoredMeasurement | None]:
    """The same for all copies that count.

    Args:
        better: metrics that have been proven to be better.
    """
    test, fresh = case.test, case.fresh
    left_over = young and any(map(is_undecided_comparison, test.checks))
    merge = merge_measurement(
        fresh, stored, acceptable_obstacles(test, fresh, terms.provenance, young=young), better, terms,
        undecided=left_over,
    )
    result = merge.result
    if merge.outdated or result == stored:
        return PlanEntry(Action.KEPT, path, case.name, reasons=(OLDER if merge.outdated else STORED,)), None
    if merge.barred is not None:
        return PlanEntry(Action.REFUSED, path, case.name, reasons=(merge.barred,)), None
    obstacles = tuple(obstacle.text for obstacle in merge.obstacles)
    if obstacles and terms.accept is None:
        return PlanEntry(Action.REFUSED, path, case.name, reasons=obstacles, acceptable=True), None
    if merge.repeats is not None:
        return PlanEntry(Action.KEPT, path, case.name, reasons=(REPEATED.format(merge.repeats),)), None
    accepted = (f"accepted ({terms.accept}): {'; '.join(obstacles)}",) if obstacles else ()
    unknown = (UNKNOWN.format(", ".join(merge.unknown)),) if merge.unknown else ()
    return PlanEntry(
        Action.CREATED if stored is None else Action.CHANGED,
        path,
        case.name,
        reasons=(
            *accepted, *(_grows(test, stored) if young else ()), *_dropped(stored, result), *_builds(stored, fresh),
            *unknown,
        ),
        moves=_moves(stored, result),
        primaries=tuple(filter(is_metric, result.primaries)),
        sessions=len(result.sessions),
    ), result


def _has_few_sessions(stored: StoredMeasurement | None, terms: UpdateTerms) -> bool:
    if stored is None:
        return True
    comparable = comparable_sessions(stored, terms.rules).sessions
    return comparable_sessions_on(comparable, terms.provenance.host) < YOUNG_BELOW


def _grows(test: TestResult, stored: StoredMeasurement | None) -> list[str]:
    """Why a session was taken in whose comparison stayed open."""
    if stored is None or not any(map(is_undecided_comparison, test.checks)):
        return []
    return [f"its INCONCLUSIVE comparison is no obstacle: fewer than {YOUNG_BELOW} sessions were stored"]


def _builds(stored: StoredMeasurement | None, fresh: Measurement) -> list[str]:
    """What sets the build of a session apart from the builds of the stored sessions."""
    changes = {} if stored is None else build_changes(stored, stored.sessions, fresh.conditions)
    texts = [f"{name} {' and '.join(value or 'absent' for value in values[:-1])} → {values[-1] or 'absent'}"
             for name, values in sorted(changes.items())]
    return [f"another build: {', '.join(texts)}"] if texts else []


def _moves(stored: StoredMeasurement | None, result: StoredMeasurement) -> tuple[Move, ...]:
    def stored_level(metric: str) -> float | None:
        if stored is None or stored.formulas.get(metric) != result.formulas[metric]:
            return None
        return mean_level(stored.sessions, metric)

    return tuple(Move(metric, stored_level(metric), mean_level(result.sessions, metric)) for metric in result.metrics)


def _dropped(stored: StoredMeasurement | None, result: StoredMeasurement) -> list[str]:
    remaining_ids = {session.id for session in result.sessions}
    stored_ids = [] if stored is None else [session.id for session in stored.sessions]
    dropped = [name for name in stored_ids if name not in remaining_ids]
    return [f"drops out: {', '.join(dropped)}"] if dropped else []


def _orphaned(path: str, baseline: Baseline, collected: Collection[str] | None) -> bool:
    kind = path.partition("/")[0]
    return collected is not None and baseline.test not in {bare_test(test, kind) for test in collected}
