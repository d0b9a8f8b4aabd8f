"""From run files to updated baselines: read, plan, write once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmperf.baseline.merging import UpdateTerms
from pytest_llmperf.baseline.plan import Mode, plan
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.baseline.update_plan import UpdatePlan
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.results.baseline import Baseline, Provenance
from pytest_llmperf.results.conditions import DEFAULT_RULES, FieldRules, kind_of
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.results.reader import read_test
from pytest_llmperf.session.provenance import read_provenance


@dataclass(frozen=True, slots=True)
class MeasuredSession:
    """The results of one pytest session, from all of its workers.

    Args:
        provenance: place and time of the session.
        tests: one entry per run file.
    """

    provenance: Provenance
    tests: tuple[TestResult, ...]


@dataclass(frozen=True, slots=True)
class UpdateScope:
    """The baselines that an update may change.

    Args:
        mode: all, or missing ones only.
        accept: a person's reason to take what would be refused.
        rules: which fields may differ.
        collected: ids of all tests; None if pytest collected only a part, so that no baseline counts as orphaned.
        in_scope: test files whose tests are all in `collected`; baselines of others count as existing.
    """

    mode: Mode
    accept: str | None = None
    rules: FieldRules = DEFAULT_RULES
    collected: Collection[str] | None = None
    in_scope: Collection[str] = ()


def read_sessions(run_files: Iterable[Path]) -> list[MeasuredSession]:
    """Sessions, oldest first. Folders with the same session id belong to one session.

    Args:
        run_files: `FOLDER/tests/*.json`. Each folder contains the provenance of its session.

    Raises:
        BaselineError: a file cannot be read, or two folders of one session have different provenances.
    """
    parts_by_session: dict[str, list[tuple[Provenance, TestResult]]] = defaultdict(list)
    origin_by_folder: dict[Path, Provenance] = {}
    for path in run_files:
        folder = path.parents[1]
        origin_by_folder[folder] = origin_by_folder.get(folder) or read_provenance(folder)
        parts_by_session[origin_by_folder[folder].session].append((origin_by_folder[folder], read_test(path)))
    return [_session(parts) for _, parts in sorted(parts_by_session.items())]


def update_baselines(
    store: Store, sessions: Sequence[MeasuredSession], scope: UpdateScope, show: Callable[[list[UpdatePlan]], None],
    *, dry_run: bool = False,
) -> list[UpdatePlan]:
    """Store sessions in the baselines, in order. The update writes exactly the plan.

    Args:
        store: the baselines.
        sessions: sessions, oldest first.
        scope: the baselines that may change.
        show: called with one plan per session before the first write.
        dry_run: whether to plan without writing.

    Raises:
        BaselineError: a baseline cannot be read, or the baselines cannot be written.
        UsageError: the reason is empty.
    """
    kinds = sorted(
        {
            kind_of(measurement.conditions)
            for session in sessions
            for test in session.tests
            for measurement in test.compared
        }
    )
    with nullcontext() if dry_run else store.update() as write:
        existing = {path: baseline for kind in kinds for path, baseline in store.read_all(kind).items()}
        plans, files = _plans(existing, sessions, scope)
        show(plans)
        if write is not None:
            write(files)
    return plans


def _plans(
    existing: Mapping[str, Baseline], sessions: Sequence[MeasuredSession], scope: UpdateScope
) -> tuple[list[UpdatePlan], dict[str, Baseline | None]]:
    """A plan per session, each based on the result of the previous plan, and the files that all plans change."""
    plans, now, files = list[UpdatePlan](), dict(existing), dict[str, Baseline | None]()
    for session in sessions:
        collected = scope.collected
        existing_tests = None if collected is None else {*collected, *_tests_out_of_scope(now, scope.in_scope)}
        planned = plan(
            session.tests, now, UpdateTerms(session.provenance, scope.accept, scope.rules), scope.mode, existing_tests
        )
        plans.append(planned)
        files |= planned.files
        now = {path: baseline for path, baseline in {**now, **planned.files}.items() if baseline is not None}
    return plans, files


def _tests_out_of_scope(existing: Mapping[str, Baseline], in_scope: Collection[str]) -> set[str]:
    return {baseline.test for baseline in existing.values() if baseline.test.partition("::")[0] not in in_scope}


def _session(parts: Sequence[tuple[Provenance, TestResult]]) -> MeasuredSession:
    origins = [origin for origin, _ in parts]
    first = min(origins, key=lambda origin: origin.date)
    for other in origins:
        if (other.host, other.commit) != (first.host, first.commit):
            raise BaselineError(
                f"Session {first.session} comes from two places: host {first.host} at commit {first.commit}, and host "
                f"{other.host} at commit {other.commit}. Take the folders of one of them."
            )
    dirty = any(origin.dirty for origin in origins)
    return MeasuredSession(replace(first, dirty=dirty), tuple(test for _, test in parts))
