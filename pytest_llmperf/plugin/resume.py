"""`--llmperf-resume RUN`: the session goes on in an earlier run folder and keeps the verdicts of that run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.plugin.identity import test_id
from pytest_llmperf.plugin.inputs import difference
from pytest_llmperf.plugin.session_record import RESUMED
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import raise_worst, tell
from pytest_llmperf.report.junit import properties
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.results.writer import file_name
from pytest_llmperf.session.executions import ending_of
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.session.provenance import add_host
from pytest_llmperf.session.resumption import folder_to_resume, resumed_tests

SHOWN = 5  # names in the line about changed tests
DECIDED = ("PASS", "IMPROVED", "FAIL", "REPORTED")


class DecidedTest(pytest.Item):
    """A test that an earlier session has decided: it reports the stored verdict and starts no server.

    Args:
        item: the test as pytest collected it.
        stored: what the run folder holds of the test.
    """

    def __init__(self, *, item: pytest.Item, stored: TestResult, **fields: Any) -> None:  # noqa: ANN401
        super().__init__(**fields)
        self.resumed, self._stored = item, stored

    def runtest(self) -> None:
        stored = self._stored
        folder = stored.folder or Path()
        path = folder / "tests" / file_name(stored.test, stored.worker)
        tell(self, replace(ending_of(stored.checks, stored.measurements), run_file=str(path)),
             [*properties(stored.test, stored.measurements, stored.checks), (RESUMED, folder.name)])
        raise_worst(self, stored.checks)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        path, line, name = self.resumed.reportinfo()
        return path, line, name


class Resume:
    """One per session: puts stored verdicts in the place of tests.

    Args:
        session: the session that goes on.
        tests: all tests of the run folder.
    """

    def __init__(self, session: PerfSession, tests: Sequence[TestResult]) -> None:
        self._session, self._tests = session, tests
        self._resumed = 0
        self._changed: list[str] = []  # tests that run again though they were decided, and why

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """After deselection. Only a test with the inputs of the stored one keeps its verdict, rates and looks."""
        by_id, going_on = {test.test: test for test in self._tests}, list[str]()
        for position, item in enumerate(items):
            if (stored := by_id.get(test_id(item))) is None or item.parent is None:
                continue
            decided = stored.complete and not stored.error and stored.verdict.value in DECIDED
            if reason := difference(stored.inputs, item):
                self._changed += [f"{item.name}: {reason}"] if decided else []
            elif decided:
                items[position] = DecidedTest.from_parent(item.parent, name=item.name, item=item, stored=stored)
                self._resumed += 1
            else:
                going_on.append(stored.test)
        self._session.resume(self._tests, going_on)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"{self._resumed} verdicts are of the resumed run")
        if self._changed:
            more = f"; and {len(self._changed) - SHOWN} more" if len(self._changed) > SHOWN else ""
            terminalreporter.write_line(f"{len(self._changed)} decided tests were measured again, because their inputs "
                                        f"differ: {'; '.join(self._changed[:SHOWN])}{more}")


def register(config: pytest.Config) -> None:
    """Register the resumption of a session that asks for it, and let the session write into the resumed folder.

    Raises:
        pytest.UsageError: there is no such run, or the run is of another commit or hardware kind.
    """
    named = config.getoption("--llmperf-resume")
    if named is None:
        return
    state = config.stash[STATE]
    try:
        folder = folder_to_resume(named, config.rootpath / state.settings.runs_dir, config.invocation_params.dir)
        state.session_id = folder.name  # before the session is built, which writes there
        tests = resumed_tests(folder, config.rootpath, [state.settings.baselines_dir], state.hardware,
                              state.session.host)
        if not hasattr(config, "workerinput"):
            add_host(folder, state.session.host)
    except LlmperfError as error:
        text = str(error)
        raise pytest.UsageError(text if text.startswith("--resume") else f"--resume {named}: {text}") from error
    except OSError as error:
        raise pytest.UsageError(f"--resume {named}: {error}") from error
    config.pluginmanager.register(Resume(state.session, tests), "llmperf-resume")
