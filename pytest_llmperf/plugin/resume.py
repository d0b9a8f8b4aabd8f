"""`--resume RUN`: the session goes on in the run folder of an earlier session and keeps what that one has decided."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmperf.plugin.baselines import RUN_FILE
from pytest_llmperf.plugin.identity import test_id
from pytest_llmperf.plugin.session_record import RESUMED
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import EVIDENCE, raise_worst

if TYPE_CHECKING:
    from pytest_llmperf.results.measurement import TestResult

DECIDED = ("PASS", "IMPROVED", "FAIL", "REPORTED")


def add_options(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--resume",
        default=None,
        metavar="RUN",
        help="go on in this run folder: the tests that it has decided do not run again and are reported with their "
        "verdicts, all others run, and a search keeps the rates that it has judged; for hardware that is lent for "
        "minutes (a path, an id, a part of the id, or newest)",
    )


class DecidedTest(pytest.Item):
    """A test that an earlier session has decided: it reports the stored verdict and starts no server.

    Args:
        item: the test as pytest collected it.
        stored: what the run folder holds of the test.
    """

    def __init__(self, *, item: pytest.Item, stored: TestResult, **fields: Any) -> None:  # noqa: ANN401
        super().__init__(**fields)
        self._item, self._stored = item, stored

    def runtest(self) -> None:
        from pytest_llmperf.report.properties import properties
        from pytest_llmperf.results.writer import file_name
        from pytest_llmperf.session.executions import evidence_of

        stored = self._stored
        folder = stored.folder or Path()
        path = folder / "tests" / file_name(stored.test, stored.worker)
        self.user_properties += properties(stored.test, stored.measurements, stored.checks)
        self.user_properties += [(RUN_FILE, str(path)), (RESUMED, folder.name)]
        self.stash[EVIDENCE] = evidence_of(stored.checks, stored.measurements)
        raise_worst(self, stored.checks)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        path, line, name = self._item.reportinfo()
        return path, line, name


class Resume:
    """One per session: puts stored verdicts in the place of tests.

    Args:
        decided: test → its result in the resumed run.
    """

    def __init__(self, decided: dict[str, TestResult]) -> None:
        self._decided = decided
        self._resumed = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """After deselection."""
        for position, item in enumerate(items):
            stored = self._decided.get(test_id(item))
            if stored is not None and item.parent is not None:
                items[position] = DecidedTest.from_parent(item.parent, name=item.name, item=item, stored=stored)
                self._resumed += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"{self._resumed} verdicts are of the resumed run")


def register(config: pytest.Config) -> None:
    """Register the resumption of a session that asks for it, and let the session write into the resumed folder.

    Raises:
        pytest.UsageError: there is no such run, or the run is of another commit or hardware kind.
    """
    named = config.getoption("--resume")
    if named is None:
        return
    from pytest_llmperf.errors import LlmperfError
    from pytest_llmperf.session.provenance import add_host
    from pytest_llmperf.session.resumption import folder_to_resume, resumed_tests

    if config.getoption("numprocesses", default=None):
        raise pytest.UsageError("--resume and -n: one process goes on in a run folder. Drop -n.")
    state = config.stash[STATE]
    try:
        folder = folder_to_resume(named, config.rootpath / state.settings.runs_dir, config.invocation_params.dir)
        state.session_id = folder.name  # before the session is built, which writes there
        tests = resumed_tests(folder, config.rootpath, [state.settings.baselines_dir], state.hardware,
                              state.session.host)
        add_host(folder, state.session.host)
    except LlmperfError as error:
        text = str(error)
        raise pytest.UsageError(text if text.startswith("--resume") else f"--resume {named}: {text}") from error
    except OSError as error:
        raise pytest.UsageError(f"--resume {named}: {error}") from error
    decided = {test.test: test for test in tests if test.complete and not test.error and test.verdict.value in DECIDED}
    state.session.resume(tests, decided)
    config.pluginmanager.register(Resume(decided), "llmperf-resume")
