"""The summary at the end of a session: verdicts and the next commands. `-v` adds all metrics."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.plugin.baselines import mode_of, run_file_of
from pytest_llmperf.plugin.kinds import CANNOT_RUN, missing_hardware, way_out
from pytest_llmperf.plugin.reports import is_ours
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import verdict_of

if TYPE_CHECKING:
    from pytest_llmperf.engines.planted_flags import PlantedFlag
    from pytest_llmperf.report.ended_test import EndedTest
    from pytest_llmperf.report.next_steps import Invocation

# Without them another machine would be asked, or nothing selected; with the default that nobody needs to type.
REPEATED = {
    "--emulate": None, "--emulate-clock": "virtual", "--emulate-noise": None,
    "--llmperf-engine": None, "--reference": None,
    "--llmperf-runs": None, "--rootdir": None, "-c": None, "-m": "",
}  # fmt: skip


class EndSummary:
    """One per session, on the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reports: dict[str, pytest.TestReport] = {}
        self._conditions: set[str] = set()  # of everything that was measured, with verdict or without

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._conditions.update(stored_texts(report, "conditions"))
        verdict, earlier = verdict_of(report), self._reports.get(report.nodeid)
        late = report.when == "teardown" and (earlier is None or verdict_of(earlier) != verdict)
        if verdict is not None and (report.when == "call" or report.failed or late):
            self._reports[report.nodeid] = report

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        verbosity = self._config.get_verbosity()
        if not self._reports or verbosity < -1:
            return
        from pytest_llmperf.process.serverlog import plain
        from pytest_llmperf.report.end_summary import counts, summary

        ended_tests = [self._ended(report) for report in self._reports.values()]
        width = terminalreporter._tw.fullwidth
        terminalreporter.section(f"llmperf: {counts(ended_tests)}", sep="=")
        for line in summary(ended_tests, self._invocation(), width, every=verbosity > 0):
            terminalreporter.write_line(plain(line))
        for flag in _unused_planted_flags(self._config.stash[STATE].planted, self._conditions):
            terminalreporter.write_line(f"planted {flag} reached no server that was measured")
        if verbosity > 0:
            self._write_metrics(terminalreporter)

    def _invocation(self) -> Invocation:
        from pytest_llmperf.report.next_steps import Invocation

        option = self._config.getoption
        virtual = option("--emulate") is not None and option("--emulate-clock") == "virtual"
        return Invocation(
            tuple(self._options()), virtual, self._config.stash[STATE].settings.extension_limit_s,
            bool(option("--plant-flag")), frozenset(self._updated()),
        )

    def _updated(self) -> Iterator[str]:
        """Verdicts whose update this session has asked for."""
        mode = mode_of(self._config)
        if mode is not None:
            yield "NO_BASELINE"
        if mode == "all":
            yield "IMPROVED"
            if self._config.getoption("--llmperf-accept") is not None:
                yield "INCOMPARABLE"

    def _options(self) -> Iterator[str]:
        from pytest_llmperf.masking import mask

        for name, default in REPEATED.items():
            value_of_option = self._config.getoption(name, default=default)
            for value in value_of_option if isinstance(value_of_option, list) else [value_of_option]:
                if value != default:  # a path stands in one word with its option: pytest takes no test for it
                    masked = mask(str(value))
                    yield from [f"{name}={masked}"] if name.startswith(("--llmperf", "--root")) else (name, masked)

    def _ended(self, report: pytest.TestReport) -> EndedTest:
        from pytest_llmperf.report.ended_test import EndedTest
        from pytest_llmperf.results.check_json import check_from
        from pytest_llmperf.results.strict_json import parse

        checks = tuple(check_from(parse(text.encode(), report.nodeid)) for text in stored_texts(report, "checks"))
        verdict, text, path = str(verdict_of(report)), report.longreprtext, run_file_of(report)
        _, start, error = text.rpartition(f"llmperf {verdict}: ")  # the last: what was raised stands above it
        cut_short = report.failed and start and not any(check.verdict.value == verdict for check in checks)
        test = next(iter(_values(report, "llmperf.test")), report.nodeid)  # without what repeats it
        file, colons, name = test.partition("::")
        return EndedTest(
            f"{self._from_here(file)}{colons}{name}", verdict, checks,
            error=error if cut_short else "",
            run=self._from_here(path.parents[1]) if path is not None and stored_texts(report, "conditions") else "",
            stored=self._stored(report),
        )

    def _from_here(self, path: str | Path) -> str:
        """A path of the project as the user types it."""
        return os.path.relpath(self._config.rootpath / path, self._config.invocation_params.dir)

    def _stored(self, report: pytest.TestReport) -> str:
        updater = self._config.pluginmanager.get_plugin("llmperf-baselines")
        stored = updater is not None and any(map(updater.wrote, _values(report, "llmperf.test")))
        return self._from_here(self._config.stash[STATE].settings.baselines_dir) if stored else ""

    def _write_metrics(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write all metrics of each measured test, from the run folder."""
        from pytest_llmperf.baseline.store import Store
        from pytest_llmperf.errors import LlmperfError
        from pytest_llmperf.process.serverlog import plain
        from pytest_llmperf.report.metric_rows import every_metric
        from pytest_llmperf.results.reader import read_run

        store = Store(self._config.rootpath / self._config.stash[STATE].settings.baselines_dir)
        files = [path for report in self._reports.values() if (path := run_file_of(report)) is not None]
        for folder in dict.fromkeys(path.parents[1] for path in files):
            try:
                lines = [line for test in read_run(folder) for line in every_metric(test, store.read)]
            except LlmperfError as error:  # written on another machine, or somebody has changed it
                lines = [str(error)]
            for line in lines:
                terminalreporter.write_line(plain(line))


class NothingMeasured:
    """One per session, on the controller: says as the last line that every performance test was skipped."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._needed: Counter[str] = Counter()  # kinds of hardware that skipped tests need
        self._ran, self._measured = False, False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        needed = [str(value) for name, value in report.user_properties if name == CANNOT_RUN]
        if needed and report.skipped:
            self._needed[needed[-1]] += 1
        elif report.when == "call" or report.failed:
            self._ran = True
            self._measured = self._measured or is_ours(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # pytest's own last line comes within
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        nothing = bool(self._needed) and not self._measured
        missing = missing_hardware(self._config) if nothing else None
        if nothing and not self._ran and (os.environ.get("CI") or missing) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        yield
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if nothing and reporter is not None:
            reporter.write_line(self._sentence() if missing is None else f"NOTHING MEASURED: {missing}", red=True)

    def _sentence(self) -> str:
        (kind, _), count = self._needed.most_common(1)[0], self._needed.total()
        tests = f"all {count} performance tests need" if count > 1 else "the performance test needs"
        return f"NOTHING MEASURED: {tests} other hardware; {way_out([kind], self._config.stash[STATE].hardware)}"


def _unused_planted_flags(planted: Sequence[PlantedFlag], conditions: Iterable[str]) -> list[PlantedFlag]:
    """Planted flags that no measured server had, so the suite did not test them."""
    measured = [json.loads(text) for text in conditions] if planted else []
    servers = [(server["engine"], json.loads(server["flags"])) for server in measured]
    return [flag for flag in planted if not any(flag.stands_in(*server) for server in servers)]


def stored_texts(report: pytest.TestReport, name: str) -> list[str]:
    """Checks or conditions of a test as JSON, also from an xdist worker; empty for tests of others."""
    texts: list[str] = getattr(report, "llmperf", {}).get(name, [])
    return texts


def _values(report: pytest.TestReport, start: str) -> list[str]:
    return [str(value) for name, value in report.user_properties if name.startswith(start)]
