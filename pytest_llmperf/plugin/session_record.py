"""The end of a session in its run folders: facts that later sessions read, the HTML report, and exports."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.clock import SystemClock
from pytest_llmperf.errors import BaselineError, LlmperfError
from pytest_llmperf.plugin.kinds import CANNOT_RUN
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.summary import repeated_options
from pytest_llmperf.plugin.verdicts import ending_of, reason_of_skip, uses_llmperf
from pytest_llmperf.report.export import export
from pytest_llmperf.report.html import write_report
from pytest_llmperf.results.reader import read_run, read_session, stored_runs
from pytest_llmperf.session.provenance import add_to_provenance
from pytest_llmperf.session.run_store import RunStore

TEST = "llmperf.test"
RESUMED = "llmperf.resumed"
DURATIONS_S = "durations_s"
EMULATED = "emulated"


class SessionRecord:
    """One per session, on the controller: what was measured comes with the reports, from xdist's workers, too."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._started_ns = SystemClock().now_ns()
        self._folders: set[Path] = set()
        self._skipped: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)  # node id → setup, call and teardown
        self._test_by_node: dict[str, str] = {}
        self._texts: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Refuse a store that cannot be written, before the first test, and copy the run folders of killed sessions. A
        session without performance tests leaves the store alone; of xdist the controller does not know the tests.
        """
        option, state = self._config.getoption, self._config.stash[STATE]
        settings = state.settings
        may_measure = any(map(uses_llmperf, session.items)) or option("numprocesses", default=None)
        if not settings.runs_store or not may_measure or option("collectonly"):
            return
        try:
            killed = RunStore(settings.runs_store).begin(state.session_id, self._config.rootpath / settings.runs_dir)
        except LlmperfError as error:
            raise pytest.UsageError(str(error)) from error
        self._store(killed)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (path := ending_of(report).path) is not None:
            self._folders.add(path.parents[1])
        self._seconds[report.nodeid] += report.duration
        named = {name: str(value) for name, value in report.user_properties}
        if TEST in named and RESUMED not in named:  # a resumed verdict took no time
            self._test_by_node[report.nodeid] = named[TEST]
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped[_reason(report)] += 1

    @pytest.hookimpl(trylast=True)  # after the baselines were updated
    def pytest_sessionfinish(self) -> None:
        state, report_path = self._config.stash[STATE], self._config.getoption("--llmperf-report")
        folders = sorted(self._folders | set(self._folders_on_disk()))
        # Reading the id of an unknown session would begin one.
        own = {self._config.rootpath / state.settings.runs_dir / state.session_id} if state.session_known else set()
        if recorded := own.union(folders):
            self._record(recorded)  # the report shows these facts
        if folders:
            self._report(folders, self._config.invocation_params.dir / report_path if report_path else folders[0])
            self._export(folders)
            self._store(folders)
        elif report_path:
            self._texts.append(f"no report in {report_path}: nothing was measured")

    def _record(self, folders: set[Path]) -> None:
        emulation = self._config.stash[STATE].emulation
        facts: dict[str, object] = {"duration_s": round((SystemClock().now_ns() - self._started_ns) / 1e9, 1)}
        facts |= {"options": options} if (options := list(repeated_options(self._config))) else {}
        facts |= {EMULATED: str(emulation)} if emulation is not None else {}
        facts |= {"skipped": dict(self._skipped.most_common())} if self._skipped else {}
        own_s = {test: round(self._seconds[node], 2) for node, test in self._test_by_node.items()}
        for folder in folders:
            earlier_s = read_session(folder).get(DURATIONS_S)  # of the commands before, in a resumed folder
            durations_s = {**earlier_s, **own_s} if isinstance(earlier_s, dict) else own_s
            with suppress(OSError, BaselineError):  # the verdicts stand without it
                add_to_provenance(folder, {**facts, DURATIONS_S: durations_s})

    def _report(self, folders: list[Path], out: Path) -> None:
        store = Store(self._config.rootpath / self._config.stash[STATE].settings.baselines_dir)
        try:
            self._texts.append(f"report: {write_report(folders, store.read, out)}")
        except LlmperfError as error:  # the verdicts stand without it
            self._texts.append(f"no report: {error}")
        except ImportError as error:  # a GPU host without a registry has not everything
            where = "Copy it to where jinja2 is installed"
            self._texts.append(f"no report of {folders[0]}: {error}. {where}: llmperf report {folders[0].name}")

    def _export(self, folders: list[Path]) -> None:
        """What cannot be exported is said, and changes no verdict: the run folder holds everything."""
        for option in self._config.getoption("--llmperf-export"):
            name, _, place = option.partition("=")
            try:
                tests = [test for folder in folders for test in read_run(folder)]
                paths = export(tests, name, self._config.invocation_params.dir / place)
            except LlmperfError as error:
                self._texts.append(f"--llmperf-export={option}: {error}")
            else:
                self._texts += [f"{name}: {path}" for path in paths]

    def _store(self, folders: list[Path]) -> None:
        """The verdicts stand without it."""
        settings = self._config.stash[STATE].settings
        if not settings.runs_store:
            return
        store = RunStore(settings.runs_store, settings.runs_store_days)
        for folder in folders:
            try:
                self._texts.append(f"run folder: {store.add(folder, datetime.now(UTC))}")
            except LlmperfError as error:
                self._texts.append(f"run folder: {folder} alone. {error}")

    def _folders_on_disk(self) -> Iterator[Path]:
        """Run folders of this session, found on disk, because a crashed worker sent no report of its last folder."""
        state = self._config.stash[STATE]
        if state.session_known:
            places = {self._config.rootpath / state.settings.runs_dir, *(folder.parent for folder in self._folders)}
            yield from (folder for place in places for folder in stored_runs(place) if folder.name == state.session_id)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for text in self._texts:
            terminalreporter.write_line(f"llmperf {text}")


def known_durations_s(runs_dir: Path, *, emulated: bool) -> dict[str, float]:
    """Test → seconds with its server starts, of the newest run that has the test.

    Args:
        runs_dir: the folder of the run folders.
        emulated: whether to read emulated sessions, which take other times, or sessions on hardware.
    """
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
