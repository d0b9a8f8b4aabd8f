"""From run files to updated baselines: read, plan, write once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmperf.baseline.checked import parse
from pytest_llmperf.baseline.fresh import FreshTest, fresh_test
from pytest_llmperf.baseline.merging import Terms
from pytest_llmperf.baseline.model import Baseline, Provenance
from pytest_llmperf.baseline.paths import kind_of
from pytest_llmperf.baseline.plan import Mode, plan
from pytest_llmperf.baseline.planned import Plan
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.session.provenance import read_provenance


@dataclass(frozen=True, slots=True)
class Measured:
    """What one pytest session has measured, by all of its workers.

    Args:
        provenance: where and when.
        tests: one entry per run file.
    """

    provenance: Provenance
    tests: tuple[FreshTest, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an update may change.

    Args:
        mode: all, or missing ones only.
        accept: a person's reason to take what would be refused.
        across: conditions that may differ.
        collected: ids of all tests that exist; None where only a part is known, and nothing is orphaned.
        in_scope: test files whose tests are all in `collected`; baselines of others count as existing.
    """

    mode: Mode
    accept: str | None = None
    across: Collection[str] = ()
    collected: Collection[str] | None = None
    in_scope: Collection[str] = ()


def measured(run_files: Iterable[Path]) -> list[Measured]:
    """Sessions, oldest first. Folders of one session's workers say the same id and are one session.

    Args:
        run_files: `FOLDER/tests/*.json`; their folders say where they come from.

    Raises:
        BaselineError: a file cannot be read, or one session claims two origins.
    """
    found: dict[str, list[tuple[Provenance, FreshTest]]] = defaultdict(list)
    known: dict[Path, Provenance] = {}
    for path in run_files:
        folder = path.parents[1]
        known[folder] = known.get(folder) or read_provenance(folder)
        found[known[folder].session].append((known[folder], _read(path)))
    return [_session(parts) for _, parts in sorted(found.items())]


def update(
    store: Store, sessions: Sequence[Measured], wanted: Wanted, show: Callable[[list[Plan]], None],
    *, dry_run: bool = False,
) -> list[Plan]:
    """Take sessions into the baselines, one after the other; what was planned is what was written, all or nothing.

    Args:
        store: the baselines.
        sessions: oldest first.
        wanted: what may change.
        show: called with one plan per session before anything is written.
        dry_run: only plan.

    Raises:
        BaselineError: a baseline cannot be read, or the baselines cannot be written: nothing was changed.
        UsageError: the reason is empty.
    """
    kinds = sorted({kind_of(each.conditions) for one in sessions for test in one.tests for each in test.measurements})
    if dry_run:
        before = {path: found for kind in kinds for path, found in store.read_all(kind).items()}
        plans, _ = _plans(before, sessions, wanted)
        show(plans)
        return plans
    with store.update() as open_update:
        before = {path: found for kind in kinds for path, found in open_update.read_all(kind).items()}
        plans, files = _plans(before, sessions, wanted)
        show(plans)
        open_update.write(files)
    return plans


def _plans(
    existing: Mapping[str, Baseline], sessions: Sequence[Measured], wanted: Wanted
) -> tuple[list[Plan], dict[str, Baseline | None]]:
    """One plan per session, each on what the ones before it leave, and what they change together."""
    plans, now, files = list[Plan](), dict(existing), dict[str, Baseline | None]()
    for session in sessions:
        collected = wanted.collected
        known = None if collected is None else {*collected, *_elsewhere(now, wanted.in_scope)}
        planned = plan(session.tests, now, Terms(session.provenance, wanted.accept, wanted.across), wanted.mode, known)
        plans.append(planned)
        files |= planned.files
        now = {path: found for path, found in {**now, **planned.files}.items() if found is not None}
    return plans, files


def _elsewhere(existing: Mapping[str, Baseline], in_scope: Collection[str]) -> set[str]:
    return {found.test for found in existing.values() if found.test.partition("::")[0] not in in_scope}


def _session(parts: Sequence[tuple[Provenance, FreshTest]]) -> Measured:
    origins = [origin for origin, _ in parts]
    first = min(origins, key=lambda origin: origin.date)
    for other in origins:
        if (other.host, other.commit) != (first.host, first.commit):
            raise BaselineError(
                f"Session {first.session} comes from two places: host {first.host} at commit {first.commit}, and host "
                f"{other.host} at commit {other.commit}. Take the folders of one of them."
            )
    dirty = any(origin.dirty for origin in origins)
    return Measured(replace(first, dirty=dirty), tuple(test for _, test in parts))


def _read(path: Path) -> FreshTest:
    try:
        content = parse(path.read_bytes(), str(path))
    except OSError as error:
        raise BaselineError(f"{path}: the run file cannot be read: {error}.") from error
    return fresh_test({key: node.value for key, node in content.table().items()}, str(path))
