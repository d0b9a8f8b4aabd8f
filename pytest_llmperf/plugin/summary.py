"""The end of a session on the terminal: what was found and what to do next; `-v` adds every metric."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.plugin.baselines import run_file_of
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import verdict_of

if TYPE_CHECKING:
    from pytest_llmperf.report.end_summary import Ended

REPEATED = ("--emulate", "-m")  # without them another machine would be asked, or nothing selected


class EndSummary:
    """One per session, on the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reports: dict[str, pytest.TestReport] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if verdict_of(report) is not None and (report.when == "call" or report.failed):
            self._reports[report.nodeid] = report

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        verbosity = self._config.get_verbosity()
        if not self._reports or verbosity < -1:
            return
        from pytest_llmperf.report.end_summary import counts, summary

        here = self._config.invocation_params.dir
        ended = [_ended(report, here) for report in self._reports.values()]
        width = terminalreporter._tw.fullwidth
        terminalreporter.section(f"llmperf: {counts(ended)}", sep="=")
        for line in summary(ended, self._options(), width, every=verbosity > 0):
            terminalreporter.write_line(line)
        if verbosity > 0:
            self._write_metrics(terminalreporter)

    def _options(self) -> list[str]:
        given = [(name, self._config.getoption(name, default=None)) for name in REPEATED]
        return [word for name, value in given if value for word in (name, value)]

    def _write_metrics(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Of every test that measured something, as its run folder has it."""
        from pytest_llmperf.baseline.store import Store
        from pytest_llmperf.errors import LlmperfError
        from pytest_llmperf.report.kept import read_run
        from pytest_llmperf.report.metric_rows import every_metric

        store = Store(self._config.rootpath / self._config.stash[STATE].settings.baselines_dir)
        files = [path for report in self._reports.values() if (path := run_file_of(report)) is not None]
        for folder in dict.fromkeys(path.parents[1] for path in files):
            try:
                lines = [line for test in read_run(folder) for line in every_metric(test, store)]
            except LlmperfError as error:  # written on another machine, or somebody has changed it
                lines = [str(error)]
            for line in lines:
                terminalreporter.write_line(line)


def _ended(report: pytest.TestReport, here: Path) -> Ended:
    from pytest_llmperf.report.end_summary import Ended

    checks = tuple(str(value) for name, value in report.user_properties if name.startswith("llmperf.check"))
    verdict, text, path = str(verdict_of(report)), report.longreprtext, run_file_of(report)
    _, start, error = text.rpartition(f"llmperf {verdict}: ")  # the last: what was raised stands above it
    cut_short = report.failed and start and not any(one.startswith(verdict) for one in checks)
    return Ended(
        report.nodeid, verdict, checks,
        error=error if cut_short else "",
        run=os.path.relpath(path.parents[1], here) if path is not None else "",
    )
