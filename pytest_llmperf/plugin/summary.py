"""The summary at the end of a session: verdicts and the next commands. `-v` adds all metrics."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.engines.process.planted_flags import PlantedFlag
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.masking import mask
from pytest_llmperf.plugin.kinds import CANNOT_RUN, missing_hardware, requested_kinds, way_out
from pytest_llmperf.plugin.options import mode_of
from pytest_llmperf.plugin.outcomes import Outcomes
from pytest_llmperf.plugin.reports import is_ours
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.process.serverlog import plain
from pytest_llmperf.report.end_summary import Invocation, summary
from pytest_llmperf.report.metric_rows import every_metric
from pytest_llmperf.results.ended_test import EndedTest, counts
from pytest_llmperf.results.reader import read_run

# Without them another machine would be asked, or nothing selected; with the default that nobody needs to type.
REPEATED = {
    "--emulate": None, "--emulate-clock": "virtual", "--emulate-noise": None,
    "--llmperf-engine": None, "--llmperf-reference": None,
    "--llmperf-runs": None, "--rootdir": None, "-c": None, "-m": "",
}  # fmt: skip


class EndSummary:
    """One per session, on the controller."""

    def __init__(self, config: pytest.Config, outcomes: Outcomes) -> None:
        self._config, self._outcomes = config, outcomes

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        verbosity = self._config.get_verbosity()
        ended = self._outcomes.ended()
        if not ended or verbosity < -1:
            return
        ended_tests = [self._as_typed(test) for test, _ in ended]
        width = terminalreporter._tw.fullwidth
        terminalreporter.section(f"llmperf: {counts(ended_tests)}", sep="=")
        for line in summary(ended_tests, self._invocation(), width, every=verbosity > 0):
            terminalreporter.write_line(plain(line))
        for flag in _unused_planted_flags(self._config.stash[STATE].planted, self._outcomes.conditions):
            terminalreporter.write_line(f"planted {flag} reached no server that was measured")
        if verbosity > 0:
            self._write_metrics(terminalreporter, [file for _, file in ended if file is not None])

    def _invocation(self) -> Invocation:
        option = self._config.getoption
        virtual = option("--emulate") is not None and option("--emulate-clock") == "virtual"
        return Invocation(
            tuple(repeated_options(self._config)), virtual, self._config.stash[STATE].settings.extension_limit_s,
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

    def _as_typed(self, test: EndedTest) -> EndedTest:
        """The test with paths relative to the folder where the user typed the command."""
        file, colons, name = test.test.partition("::")
        return replace(test, test=f"{self._from_here(file)}{colons}{name}", run=self._from_here(test.run),
                       stored=self._from_here(test.stored))

    def _from_here(self, path: str) -> str:
        return path and os.path.relpath(self._config.rootpath / path, self._config.invocation_params.dir)

    def _write_metrics(self, terminalreporter: pytest.TerminalReporter, files: Sequence[Path]) -> None:
        """Write all metrics of each measured test, from the run folder."""
        store = Store(self._config.rootpath / self._config.stash[STATE].settings.baselines_dir)
        for folder in dict.fromkeys(path.parents[1] for path in files):
            try:
                lines = [line for test in read_run(folder) for line in every_metric(test, store.read)]
            except LlmperfError as error:  # written on another machine, or changed by hand
                lines = [str(error)]
            for line in lines:
                terminalreporter.write_line(plain(line))


def repeated_options(config: pytest.Config) -> Iterator[str]:
    """Options that a pytest command must repeat to run the same tests in the same way."""
    for name, default in REPEATED.items():
        value_of_option = config.getoption(name, default=default)
        for value in value_of_option if isinstance(value_of_option, list) else [value_of_option]:
            if value != default:  # a path stands in one word with its option: pytest takes no test for it
                masked = mask(str(value))
                yield from [f"{name}={masked}"] if name.startswith(("--llmperf", "--root")) else (name, masked)


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
        asked = missing or requested_kinds(self._config.getoption("-m", default="") or "")  # or for more GPUs of a kind
        if nothing and not self._ran and (os.environ.get("CI") or asked) and session.exitstatus == pytest.ExitCode.OK:
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
