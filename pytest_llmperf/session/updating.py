"""From run files to updated baselines: read, plan, write once."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from pytest_llmperf.baseline.fresh import FreshTest, fresh_test
from pytest_llmperf.baseline.merging import Terms
from pytest_llmperf.baseline.model import Baseline
from pytest_llmperf.baseline.paths import kind_of
from pytest_llmperf.baseline.plan import Mode, plan
from pytest_llmperf.baseline.planned import Plan
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import BaselineError


def update(
    store: Store,
    run_files: Iterable[Path],
    terms: Terms,
    mode: Mode,
    *,
    collected: Collection[str] | None = None,
    in_scope: Collection[str] = (),
) -> Plan:
    """Take the measurements of a session into the baselines; what was planned is what was written.

    Args:
        store: the baselines.
        run_files: of the tests that ran.
        terms: provenance, a person's reason, margins.
        mode: all, or missing ones only.
        collected: ids of all tests that exist; None where only a part is known, and nothing is orphaned.
        in_scope: test files whose tests are all in `collected`; baselines of others count as existing.

    Raises:
        BaselineError: a run file or baseline cannot be read, or the baselines cannot be written: nothing was changed.
        UsageError: the reason is empty.
    """
    tests = [_read(path) for path in run_files]
    kinds = {kind_of(measurement.conditions) for test in tests for measurement in test.measurements}
    with store.update() as open_update:
        existing = {path: found for kind in sorted(kinds) for path, found in open_update.read_all(kind).items()}
        known = None if collected is None else {*collected, *_elsewhere(existing, in_scope)}
        planned = plan(tests, existing, terms, mode, known)
        open_update.write(planned.files)
    return planned


def _elsewhere(existing: Mapping[str, Baseline], in_scope: Collection[str]) -> set[str]:
    return {found.test for found in existing.values() if found.test.partition("::")[0] not in in_scope}


def _read(path: Path) -> FreshTest:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BaselineError(f"{path}: the run file cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise BaselineError(f"{path}: this is no run file: it holds no object.")
    return fresh_test(content, str(path))
