"""Writes `session.json` at the end of a session: durations, emulation, skipped tests. Later sessions read it."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_llmperf.clock import SystemClock
from pytest_llmperf.plugin.baselines import run_file_of
from pytest_llmperf.plugin.kinds import CANNOT_RUN
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import reason_of_skip

TEST = "llmperf.test"
RESUMED = "llmperf.resumed"
DURATIONS_S = "durations_s"
EMULATED = "emulated"


class SessionRecord:
    """One per session, on the controller. It writes before the report is made, which shows these facts."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._started_ns = SystemClock().now_ns()
        self._folders: set[Path] = set()
        self._skipped: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)  # node id → setup, call and teardown
        self._test_by_node: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (path := run_file_of(report)) is not None:
            self._folders.add(path.parents[1])
        self._seconds[report.nodeid] += report.duration
        named = {name: str(value) for name, value in report.user_properties}
        if TEST in named and RESUMED not in named:  # a resumed verdict took no time
            self._test_by_node[report.nodeid] = named[TEST]
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped[_reason(report)] += 1

    def pytest_sessionfinish(self) -> None:
        state = self._config.stash[STATE]
        folders = set(self._folders)
        if state.session_known:  # reading the id of an unknown session would begin one
            folders.add(self._config.rootpath / state.settings.runs_dir / state.session_id)
        if folders:
            self._write(folders)

    def _write(self, folders: set[Path]) -> None:
        from pytest_llmperf.errors import BaselineError
        from pytest_llmperf.results.reader import read_session
        from pytest_llmperf.session.provenance import add_to_provenance

        emulation = self._config.stash[STATE].emulation
        facts: dict[str, object] = {"duration_s": round((SystemClock().now_ns() - self._started_ns) / 1e9, 1)}
        facts |= {EMULATED: str(emulation)} if emulation is not None else {}
        facts |= {"skipped": dict(self._skipped.most_common())} if self._skipped else {}
        own_s = {test: round(self._seconds[node], 2) for node, test in self._test_by_node.items()}
        for folder in folders:
            earlier_s = read_session(folder).get(DURATIONS_S)  # of the commands before, in a resumed folder
            durations_s = {**earlier_s, **own_s} if isinstance(earlier_s, dict) else own_s
            with suppress(OSError, BaselineError):  # the verdicts stand without it
                add_to_provenance(folder, {**facts, DURATIONS_S: durations_s})


def known_durations_s(runs_dir: Path, *, emulated: bool) -> dict[str, float]:
    """Test → seconds with its server starts, of the newest run that has the test.

    Args:
        runs_dir: the folder of the run folders.
        emulated: whether to read emulated sessions, which take other times, or sessions on hardware.
    """
    from pytest_llmperf.results.reader import read_session, stored_runs

    durations_s: dict[str, float] = {}
    for session in map(read_session, stored_runs(runs_dir)):
        stored_s = session.get(DURATIONS_S)
        if isinstance(stored_s, dict) and (EMULATED in session) is emulated:
            durations_s |= {test: float(value) for test, value in stored_s.items() if isinstance(value, int | float)}
    return durations_s


def _reason(report: pytest.TestReport) -> str:
    """Why a test was skipped; the needed hardware of a test that cannot run here."""
    text = reason_of_skip(report)
    return text.partition(";")[0] if any(name == CANNOT_RUN for name, _ in report.user_properties) else text
