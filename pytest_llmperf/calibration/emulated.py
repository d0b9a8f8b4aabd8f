"""The whole calibration on the emulator, from tests to a page."""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.baseline.text import encode
from pytest_llmperf.calibration.campaign import FIRST, Campaign
from pytest_llmperf.calibration.experiments import Experiment, experiments
from pytest_llmperf.calibration.journal import RowJournal
from pytest_llmperf.calibration.limits import SETTINGS, Setting, verdicts_at_limit
from pytest_llmperf.calibration.page import Origin, limit_name, page
from pytest_llmperf.calibration.row import CalibrationRow
from pytest_llmperf.calibration.slow_servers import BEYOND, CASES, RUNS, SlowServerCase, slow_names, verdicts
from pytest_llmperf.calibration.suite_test import SuiteTest
from pytest_llmperf.calibration.workers import results_of
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.errors import UsageError
from pytest_llmperf.results.baseline import Baseline
from pytest_llmperf.results.conditions import EMULATED
from pytest_llmperf.session.provenance import VIRTUAL_HOST, provenance
from pytest_llmperf.version import PACKAGE_DIR, VERSION

#: Trials of each simulated server. 400 take three hours of one core; docs/evidence/slow_servers.md has such tables.
MOST_SLOW_TRIALS = 100
LIMITS_SEED = 1


def calibrate_emulated(
    tests: Sequence[SuiteTest],
    *,
    named: bool,
    left_out: Sequence[str],
    kind: str,
    suite_runs: int,
    faults: int,
    limits: int,
    jobs: int,
    out: Path,
    root: Path,
    command: str,
    notify: Callable[[str], None],
) -> str:
    """Run what the journal beside the page does not have yet, and write the page, experiment by experiment.

    Args:
        tests: tests of the suites to calibrate.
        named: whether the command named these tests; False for all suites.
        left_out: ids of tests that cannot be calibrated, for the page.
        kind: emulated hardware kind.
        suite_runs, faults, limits: number of suite runs, runs per fault and trials per limit, see `experiments` and
            `limits`.
        jobs: number of processes for all simulations. The rows do not depend on it.
        out: path of the page. The rows are in the same folder, as FILE.jsonl.
        root: root of the project.
        command: the command line, for the page.
        notify: receives each line of progress.

    Returns:
        The page.

    Raises:
        UsageError: a number is invalid, there are no baselines, or the journal belongs to other tests or baselines.
    """
    if min(suite_runs, faults, limits) < 0 or not suite_runs + faults + limits:
        raise UsageError("--suite-runs, --faults and --limits are numbers of at least 0, not all 0.")
    if jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least one process must do the suite runs.")
    settings = read_settings(root)
    stored = Store(root / settings.baselines_dir).read_all(f"{EMULATED}{kind}")
    if not stored:
        raise UsageError(f"No baselines of an emulated {kind} lie in {root / settings.baselines_dir}. Make some: "
                         f"pytest {tests[0].name.partition('::')[0]} --emulate {kind} --update-baselines-new")
    source = provenance(root, "", datetime.now(UTC), [settings.baselines_dir, *_relative_path(root, out)], VIRTUAL_HOST)
    commit = f"{source.commit or 'unknown'}{' with changes' if source.dirty else ''}"
    todo = [
        experiment
        for experiment in experiments(suite_runs, faults)
        if experiment.suite_runs and _is_watched(experiment, tests, notify)
    ]
    about = {"calibration": kind, "version": VERSION, "commit": commit, "tests": [test.name for test in tests],
             "baselines": _digest(stored), "sources": _sources(root, tests)}
    with RowJournal(out.with_name(out.name + ".jsonl"), about) as journal:
        primaries = sum(len(m.primaries) for baseline in stored.values() for m in baseline.measurements.values())
        shown = tuple(test.name for test in tests) if named else ()
        origin = Origin(kind, command, commit, source.date, _machine(), primaries, shown, tuple(left_out))
        campaign = Campaign(settings, root, kind, tests, jobs)
        for experiment in todo:
            campaign.run(experiment, journal, notify)
            out.write_text(page(origin, todo, _planned_row_count(journal, todo, limits)), encoding="utf-8")
        _count_limits(journal, limits, jobs, notify)
        _count_slow_servers(journal, min(limits, MOST_SLOW_TRIALS), jobs, notify)
        text = page(origin, todo, _planned_row_count(journal, todo, limits))
    out.write_text(text, encoding="utf-8")
    return text


def _is_watched(experiment: Experiment, tests: Sequence[SuiteTest], notify: Callable[[str], None]) -> bool:
    watched = any(experiment.watched_by in test.name for test in tests)
    if not watched:
        notify(f"{experiment.name}: left out, no test whose id has {experiment.watched_by!r} is there to watch it")
    return watched


def _planned_row_count(journal: RowJournal, todo: Sequence[Experiment], limits: int) -> list[CalibrationRow]:
    """The rows of the journal that belong to this command. An earlier command with more suite runs, or with another
    number of trials per limit, leaves further rows in the journal."""
    wanted = {experiment.name: range(FIRST, FIRST + experiment.suite_runs) for experiment in todo}
    wanted |= {limit_name(setting): range(limits, limits + 1) for setting in SETTINGS}
    trials = min(limits, MOST_SLOW_TRIALS)
    wanted |= {name: range(trials, trials + 1) for case in CASES for requests in case.requests
               for name in slow_names(case, requests)}
    return [row for row in journal.rows.values() if row.number in wanted.get(row.experiment, ())]


def _digest(stored: Mapping[str, Baseline]) -> str:
    """Digest of the baselines, because the rows depend on the baselines."""
    digest = hashlib.sha256()
    for path in sorted(stored):
        digest.update(path.encode() + b"\n" + encode(stored[path]))
    return digest.hexdigest()[:16]


def _sources(root: Path, tests: Sequence[SuiteTest]) -> str:
    """Digest of the tests' files, the settings and this package. The commit does not cover uncommitted changes."""
    package = PACKAGE_DIR
    suites = sorted({root / test.name.partition("::")[0] for test in tests})
    digest = hashlib.sha256()
    settings = (root / "llmperf.toml", root / "pyproject.toml")
    for path in (*suites, *settings, *sorted(package.rglob("*.py"))):
        if path.is_file():
            digest.update(path.name.encode() + b"\n" + path.read_bytes())
    return digest.hexdigest()[:16]


def _count_limits(journal: RowJournal, trials: int, jobs: int, notify: Callable[[str], None]) -> None:
    """Adds one row per setting to the journal, for all trials of that setting."""
    missing = [setting for setting in SETTINGS if trials and (limit_name(setting), trials) not in journal.rows]

    def count(settings: Sequence[Setting]) -> Iterator[tuple[str, Counter[str]]]:
        for setting in settings:
            verdicts = verdicts_at_limit(setting, trials, LIMITS_SEED)
            yield limit_name(setting), Counter(verdict.value for verdict in verdicts)

    with closing(results_of(count, missing, jobs)) as counted:
        for name, counts in counted:
            _add_counts(journal, name, trials, counts)
            notify(f"SLO at its limit, {name}: {dict(counts)}")


def _count_slow_servers(journal: RowJournal, trials: int, jobs: int, notify: Callable[[str], None]) -> None:
    """Adds one row per case, run length and limit to the journal, for all trials."""
    missing = [(case, requests) for case in CASES for requests in case.requests
               if trials and any((name, trials) not in journal.rows for name in slow_names(case, requests))]

    def count(cases: Sequence[tuple[SlowServerCase, int]]) -> Iterator[tuple[list[str], list[Counter[str]]]]:
        for case, requests in cases:
            tallies = verdicts(case, requests, RUNS, trials, seed=LIMITS_SEED, beyond=BEYOND)
            yield slow_names(case, requests), tallies

    with closing(results_of(count, missing, jobs)) as counted:
        for names, tallies in counted:
            for name, counts in zip(names, tallies, strict=True):
                _add_counts(journal, name, trials, counts)
                notify(f"SLO on a simulated server, {name}: {dict(counts)}")


def _add_counts(journal: RowJournal, name: str, trials: int, counts: Counter[str]) -> None:
    journal.add(CalibrationRow(name, trials, dict(counts), {}, (), (), 0, {}, 0))


def _relative_path(root: Path, out: Path) -> list[str]:
    """The page itself, which may be in git and changes as it is written; nothing where it lies elsewhere."""
    page = (root / out).resolve()
    return [str(page.relative_to(root.resolve()))] if page.is_relative_to(root.resolve()) else []


def _machine() -> str:
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
