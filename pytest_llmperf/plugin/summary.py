"""The end of a session on the terminal: what was found and what to do next; `-v` adds every metric."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.plugin.baselines import RUN_FILE
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

        ended = [_ended(report) for report in self._reports.values()]
        width = terminalreporter._tw.fullwidth
        terminalreporter.section(f"llmperf: {counts(ended)}", sep="=")
        for line in summary(ended, self._options(), width, every=verbosity > 0):
            terminalreporter.write_line(line)
        if verbosity > 0:
            for report in self._reports.values():
                self._write_metrics(terminalreporter, report)

    def _options(self) -> list[str]:
        given = [(name, self._config.getoption(name, default=None)) for name in REPEATED]
        return [word for name, value in given if value for word in (name, value)]

    def _write_metrics(self, terminalreporter: pytest.TerminalReporter, report: pytest.TestReport) -> None:
        path = _run_file(report)
        if path is None or not path.is_file():  # the worker ran on another machine
            return
        from pytest_llmperf.baseline.paths import kind_of
        from pytest_llmperf.baseline.store import Store
        from pytest_llmperf.errors import BaselineError
        from pytest_llmperf.report.metric_rows import metric_table

        store = Store(self._config.rootpath / self._config.stash[STATE].settings.baselines_dir)
        for measurement in json.loads(path.read_text(encoding="utf-8"))["measurements"]:
            try:
                baseline = store.read(report.nodeid, kind_of(measurement["conditions"]))
            except BaselineError:  # its own check has said so
                baseline = None
            stored = None if baseline is None else baseline.measurements.get(measurement["baseline"])
            terminalreporter.write_line(f"\n{report.nodeid}\n{measurement['engine']}, {measurement['workload']}")
            for line in metric_table([run["metrics"] for run in measurement["runs"]], stored):
                terminalreporter.write_line(f"  {line}")


def _ended(report: pytest.TestReport) -> Ended:
    from pytest_llmperf.report.end_summary import Ended

    checks = tuple(str(value) for name, value in report.user_properties if name.startswith("llmperf.check"))
    verdict, text, path = str(verdict_of(report)), report.longreprtext, _run_file(report)
    _, start, error = text.rpartition(f"llmperf {verdict}: ")  # the last: what was raised stands above it
    cut_short = report.failed and start and not any(one.startswith(verdict) for one in checks)
    return Ended(
        report.nodeid, verdict, checks,
        error=error if cut_short else "",
        run=path.parents[1].name if path is not None else "",
    )


def _run_file(report: pytest.TestReport) -> Path | None:
    found = [str(value) for name, value in report.user_properties if name == RUN_FILE]
    return Path(found[-1]) if found else None
