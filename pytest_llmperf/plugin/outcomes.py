"""How each test of the session ended: one value per test, from which every report of the session is made.

A test counts if it uses llmperf. Any other test and any file counts if it failed: no report is green where pytest is
red. A passed test without llmperf stands in JUnit alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.masking import mask
from pytest_llmperf.plugin.reports import JUnit, is_ours
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import TEST, ending_of, first_line_of, reason_of_skip
from pytest_llmperf.results.check_json import check_from
from pytest_llmperf.results.emulated_ground import notes
from pytest_llmperf.results.ended_test import SKIPPED, EndedTest, severity
from pytest_llmperf.results.measurement import CUT_SHORT
from pytest_llmperf.results.reader import read_run
from pytest_llmperf.results.session_outcomes import RecordedOutcome, write_outcomes
from pytest_llmperf.results.strict_json import parse
from pytest_llmperf.results.writer import file_name

Report = pytest.TestReport | pytest.CollectReport
PHASES = ("collect", "setup", "call", "teardown")
INTERRUPTED = "The session was interrupted before the test ended."
PACKAGE = b"pytest_llmperf"


@dataclass(slots=True)
class Heard:
    """What the reports of one execution of an item, or of the collection of a file, say.

    Args:
        report: the last of them.
        ours: whether it uses llmperf.
        errors: outcome → why, for each end that is no verdict of its checks.
    """

    report: Report
    ours: bool = False
    errors: dict[str, str] = field(default_factory=dict)


class Outcomes:
    """One per session, on the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._heard: dict[str, Heard] = {}  # by node id
        self._running: dict[str, None] = {}
        self._interrupted: dict[str, tuple[EndedTest, Path | None]] = {}
        self.conditions: set[str] = set()  # of everything that was measured, with verdict or without, as JSON

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._hear(report, Heard(report, ours=names_package(self._config.rootpath / report.nodeid)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in PHASES:  # xdist's report of a worker that crashed
            self._running.pop(report.nodeid, None)
        heard = self._heard.get(report.nodeid)
        self._hear(report, Heard(report) if heard is None or report.when == "setup" else heard)

    def _hear(self, report: Report, heard: Heard) -> None:
        self._heard[report.nodeid] = heard
        self.conditions.update(ending_of(report).conditions)
        heard.report, heard.ours = report, heard.ours or is_ours(report)
        if (undecided := _undecided(report)) is not None:
            heard.errors.setdefault(*undecided)

    @pytest.hookimpl(tryfirst=True)  # after the update of the baselines, and before JUnit is written
    def pytest_sessionfinish(self) -> None:
        if not self._config.option.collectonly:
            self._interrupted = {nodeid: self._cut_short(nodeid) for nodeid in self._running}
            ended = self.ended()
            if ended:
                self._write(ended)
                self._complete_junit()

    def ended(self) -> list[tuple[EndedTest, Path | None]]:
        """Each test once, with its run file. Empty if all tests that use llmperf were skipped."""
        by_test: dict[tuple[str, Path | None], EndedTest] = {}
        ran = False
        for nodeid in self._nodes():
            test, file = self._ended(nodeid)
            ours = file is not None or (nodeid in self._heard and self._heard[nodeid].ours)
            ran = ran or (ours and test.outcome != SKIPPED)
            copy = by_test.get((test.test, file))
            by_test[test.test, file] = test if copy is None or test.severity >= copy.severity else copy
        return [(test, file) for (_, file), test in by_test.items()] if ran else []

    def _nodes(self) -> Iterator[str]:
        """Node ids of the tests that count."""
        for nodeid, heard in self._heard.items():
            red = heard.errors.keys() - {"SKIPPED"}
            if nodeid not in self._interrupted and (heard.ours or red):
                yield nodeid
        yield from self._interrupted

    def _ended(self, nodeid: str) -> tuple[EndedTest, Path | None]:
        if nodeid in self._interrupted:
            return self._interrupted[nodeid]
        heard = self._heard[nodeid]
        ending = ending_of(heard.report)
        word = max(filter(None, (ending.verdict, *heard.errors)), key=severity, default="REPORTED")
        test, path = _test_of(heard.report), ending.path
        measured = bool(ending.conditions)
        return EndedTest(
            test, word, tuple(check_from(parse(text.encode(), test)) for text in ending.checks),
            heard.errors.get(word, ""), measured=measured, stored=self._stored(test),
            run=str(path.parents[1]) if path is not None and measured else "", owner=ending.owner,
            excuse=ending.excuse,
            emulated=tuple(notes(json.loads(text) for text in ending.conditions)),
        ), path  # fmt: skip

    def _stored(self, test: str) -> str:
        updater = self._config.pluginmanager.get_plugin("llmperf-baselines")
        return self._config.stash[STATE].settings.baselines_dir if updater is not None and updater.wrote(test) else ""

    def _cut_short(self, nodeid: str) -> tuple[EndedTest, Path | None]:
        """A test whose end no report tells: its run file may."""
        state = self._config.stash[STATE]
        if state.session_known:
            with suppress(LlmperfError):
                for test in read_run(self._folder):
                    if test.test == nodeid:
                        path = self._folder / "tests" / file_name(test.test, test.worker)
                        ending = test.ending
                        error = INTERRUPTED if ending.error == CUT_SHORT else ending.error
                        return replace(ending, error=error, run=str(self._folder)), path
        return EndedTest(nodeid, "ERROR", error=INTERRUPTED, measured=False), None

    @property
    def _folder(self) -> Path:
        state = self._config.stash[STATE]
        return self._config.rootpath / state.settings.runs_dir / state.session_id

    def _write(self, ended: list[tuple[EndedTest, Path | None]]) -> None:
        folder = next((file.parents[1] for _, file in ended if file is not None), self._folder)
        with suppress(OSError):  # the verdicts stand without it
            write_outcomes(folder, [
                RecordedOutcome(test.test, "" if file is None else file.name, test.recorded, test.error, test.owner,
                                test.excuse)
                for test, file in ended
            ])

    def _complete_junit(self) -> None:
        junit = JUnit(self._config)
        for nodeid in self._nodes():
            test, _ = self._ended(nodeid)
            junit.complete(nodeid, test, missing=nodeid in self._interrupted)


def names_package(path: Path) -> bool:
    """Whether the source of a test file names this package."""
    with suppress(OSError):
        return PACKAGE in path.read_bytes()
    return False


def _test_of(report: Report) -> str:
    """The id of a test, without what repeats it."""
    properties = [str(value) for name, value in getattr(report, "user_properties", ()) if name == TEST]
    return next(iter(properties), ending_of(report).test or report.nodeid)


def _undecided(report: Report) -> tuple[str, str] | None:
    """Outcome and reason of an end that is no verdict of checks; None if the checks decided."""
    ending = ending_of(report)
    if report.skipped and ending.excuse:
        return ending.undecided
    if report.skipped:
        return None if ending.verdict is not None else ("SKIPPED", mask(reason_of_skip(report)))
    if not report.failed or hasattr(report, "llmperf"):
        return ending.undecided if report.failed else None
    raised = mask(first_line_of(report))
    return ("ERROR" if report.when not in PHASES else "FAILED"), raised
