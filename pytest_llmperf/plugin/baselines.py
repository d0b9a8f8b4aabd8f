"""`--update-baselines`: the controller takes what ran into the baselines, once, at the end of the session."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmperf.baseline.paths import bare_test
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.baseline.update_plan import Action, UpdatePlan, summary
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.plugin.identity import test_id
from pytest_llmperf.plugin.options import Mode, mode_of
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import ending_of
from pytest_llmperf.process.serverlog import plain
from pytest_llmperf.results.conditions import field_rules
from pytest_llmperf.session.baseline_update import UpdateScope, read_sessions, update_baselines


def refuse_contradictory_options(config: pytest.Config) -> None:
    """Raise UsageError for contradictory options, before the first test runs."""
    if config.getoption("--update-baselines") and config.getoption("--update-baselines-new"):
        raise pytest.UsageError("--update-baselines and --update-baselines-new: choose one.")
    if config.getoption("--plant-flag") and mode_of(config) is not None:
        raise pytest.UsageError("--plant-flag plants a regression: what it measures never becomes a baseline.")
    if config.getoption("--llmperf-accept") is not None and mode_of(config) is None:
        raise pytest.UsageError("--llmperf-accept REASON needs --update-baselines or --update-baselines-new.")
    if config.getoption("--llmperf-accept") is not None and not config.getoption("--llmperf-accept").strip():
        raise pytest.UsageError('--llmperf-accept "": say why; the reason is stored beside the values.')


class BaselineUpdater:
    """One per session, on the controller.

    Args:
        config: pytest's.
        mode: all that ran, or missing baselines only.
    """

    def __init__(self, config: pytest.Config, mode: Mode) -> None:
        self.config = config
        self.mode = mode
        self.run_files: dict[str, Path] = {}
        self.collected: set[str] | None = None
        self.read: set[str] = set()  # test files whose tests pytest has collected, without deselected tests
        self.problem = ""
        self._written: set[tuple[str, str]] = set()  # kinds and tests that this session has created or changed

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Before anything is deselected."""
        self.collected = {test_id(item) for item in items}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._partial = True
        elif report.passed:
            self.read.add(report.nodeid)

    _partial = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (path := ending_of(report).path) is not None:
            self.run_files[report.nodeid] = path

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            return
        try:
            planned = self._update()
        except LlmperfError as error:
            self.problem = f"baselines: nothing was updated: {error}"
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
            return
        self._written = {(path.partition("/")[0], baseline.test) for plan in planned
                         for path, baseline in plan.files.items() if baseline is not None}
        if any(map(_refused, planned)):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def wrote(self, test: str) -> bool:
        """Whether this session has created or changed the baseline of a test, by its id."""
        return any(bare_test(test, kind) == written for kind, written in self._written)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.problem:
            terminalreporter.section("baselines", sep="=")
            terminalreporter.write_line(plain(self.problem))

    def _show(self, plans: list[UpdatePlan]) -> None:
        """Print the plans before the write, which may fail or be killed."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_sep("=", "baselines")
            reporter.write_line(plain("\n".join(map(summary, plans))) or "baselines: nothing to do", flush=True)

    def _update(self) -> list[UpdatePlan]:
        settings = self.config.stash[STATE].settings
        sessions = read_sessions(dict.fromkeys(self.run_files[test] for test in sorted(self.run_files)))
        wanted = UpdateScope(
            self.mode,
            accept=self.config.getoption("--llmperf-accept"),
            rules=field_rules(settings),
            collected=None if self._partial else self.collected,
            in_scope=self._whole_files(),
        )
        return update_baselines(Store(self.config.rootpath / settings.baselines_dir), sessions, wanted, self._show)

    def _whole_files(self) -> set[str]:
        """Stored test files below what was named as a whole that are gone, or all of whose tests pytest has collected.

        Nothing under --last-failed, which deselects tests before any hook sees them.
        """
        if self.config.getoption("lf", False):
            return set()
        root, here = self.config.rootpath, self.config.invocation_params.dir
        named_paths = [(here / argument).resolve() for argument in self.config.args if "::" not in argument]

        def whole(file: str) -> bool:
            path = (root / file).resolve()
            return (file in self.read or not path.exists()) and any(path.is_relative_to(place) for place in named_paths)

        return set(filter(whole, self._stored_files()))

    def _stored_files(self) -> set[str]:
        settings = self.config.stash[STATE].settings
        folder = self.config.rootpath / settings.baselines_dir
        kinds = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
        store = Store(folder)
        stored_tests = (
            baseline.test for kind in kinds if kind[:1] not in "._" for baseline in store.read_all(kind).values()
        )
        return {test.partition("::")[0] for test in stored_tests}


def _refused(planned: UpdatePlan) -> bool:
    return planned.count(Action.REFUSED) > 0
