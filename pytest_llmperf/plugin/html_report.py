"""The HTML report at the end of a session, made by the controller from the run folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_llmperf.plugin.baselines import run_file_of
from pytest_llmperf.plugin.state import STATE


class Reporter:
    """One per session, on the controller: what was measured comes with the reports, from xdist's workers, too."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.folders: set[Path] = set()
        self.text = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (path := run_file_of(report)) is not None:
            self.folders.add(path.parents[1])

    @pytest.hookimpl(trylast=True)  # after the baselines were updated
    def pytest_sessionfinish(self) -> None:
        report_path = self.config.getoption("--llmperf-report")
        folders = sorted(self.folders | set(self._folders_on_disk()))
        if folders:
            self._write(folders, self.config.invocation_params.dir / report_path if report_path else folders[0])
            self._export(folders)
        elif report_path:
            self.text = f"no report in {report_path}: nothing was measured"

    def _write(self, folders: list[Path], out: Path) -> None:
        from pytest_llmperf.baseline.store import Store
        from pytest_llmperf.errors import LlmperfError
        from pytest_llmperf.report.html import write_report

        store = Store(self.config.rootpath / self.config.stash[STATE].settings.baselines_dir)
        try:
            self.text = f"report: {write_report(folders, store.read, out)}"
        except LlmperfError as error:  # the verdicts stand without it
            self.text = f"no report: {error}"
        except ImportError as error:  # a GPU host without a registry has not everything
            where = "Copy it to where jinja2 is installed"
            self.text = f"no report of {folders[0]}: {error}. {where}: llmperf report {folders[0].name}"

    def _export(self, folders: list[Path]) -> None:
        """What cannot be exported is said, and changes no verdict: the run folder holds everything."""
        from pytest_llmperf.errors import LlmperfError
        from pytest_llmperf.report.export import export
        from pytest_llmperf.results.reader import read_run

        for option in self.config.getoption("--llmperf-export"):
            name, _, place = option.partition("=")
            try:
                tests = [test for folder in folders for test in read_run(folder)]
                paths = export(tests, name, self.config.invocation_params.dir / place)
            except LlmperfError as error:
                self.text += f"\nllmperf --llmperf-export={option}: {error}"
            else:
                self.text += "".join(f"\nllmperf {name}: {path}" for path in paths)

    def _folders_on_disk(self) -> Iterator[Path]:
        """Run folders of this session, found on disk, because a crashed worker sent no report of its last folder."""
        from pytest_llmperf.results.reader import stored_runs

        state = self.config.stash[STATE]
        if state.session_known:
            places = {self.config.rootpath / state.settings.runs_dir, *(folder.parent for folder in self.folders)}
            yield from (folder for place in places for folder in stored_runs(place) if folder.name == state.session_id)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.text:
            terminalreporter.write_line(f"llmperf {self.text}")
