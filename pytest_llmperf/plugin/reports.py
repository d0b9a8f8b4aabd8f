"""Watches pytest's reports on the controller: counts verdicts, and writes JUnit's `<error>` for an ERROR of a call."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from _pytest.junitxml import LogXML, _NodeReporter, mangle_test_address, xml_key

from pytest_llmperf.plugin.progress import WorkerNode
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import UNKNOWN, VERDICT, ending_of
from pytest_llmperf.process.serverlog import plain
from pytest_llmperf.report.junit import outcome_properties
from pytest_llmperf.results.ended_test import EndedTest, excused


class JUnit:
    """The file that pytest is about to write; without `--junitxml` nothing happens.

    Args:
        config: pytest's.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._xml = config.stash.get(xml_key, None)

    def complete(self, nodeid: str, test: EndedTest, *, missing: bool) -> None:
        """Set the properties of a test's entries.

        Args:
            nodeid: of the item.
            test: how it ended.
            missing: whether pytest has no report of its end, and so no entry.
        """
        if self._xml is None:
            return
        if missing:
            file, _, name = nodeid.partition("::")
            report = pytest.TestReport(nodeid, (file, None, name), {}, "failed", test.error, "call")
            self._xml._opentestcase(report)._add_simple("error", test.decided_by)
        for reporter in _entries(self._xml, nodeid):
            if "to_xml" not in vars(reporter):
                reporter.finalize()  # else each call makes the entry anew
            _mark_error(self._xml, reporter.to_xml())
            _set(reporter.to_xml(), outcome_properties(test))


def _mark_error(xml: LogXML, case: ElementTree.Element) -> None:
    """JUnit files every failure of the call phase under `<failure>`; an ERROR is no regression.

    The text stays ours: pytest's own `<error>` would say that the test failed on setup. The evidence stands
    under `<system-err>` too, where readers of a dead process look for it.
    """
    if case.find(f"properties/property[@name='{VERDICT}'][@value='ERROR']") is None:
        return
    for failure in case.findall("failure"):
        failure.tag = "error"
        xml.stats["failure"] -= 1
        xml.stats["error"] += 1
        ElementTree.SubElement(case, "system-err").text = failure.text


def _entries(xml: LogXML, nodeid: str) -> list[_NodeReporter]:
    """What the file has of an item: an entry for each execution, and perhaps one more for a teardown."""
    *classes, name = mangle_test_address(nodeid)
    classname = ".".join([xml.prefix, *classes] if xml.prefix else classes)
    return [reporter for reporter in xml.node_reporters_ordered
            if (attrs := reporter.to_xml().attrib).get("classname") == classname and attrs.get("name") == name]


def _set(case: ElementTree.Element, properties: dict[str, str]) -> None:
    """Replace or add properties of a test case."""
    node = case.find("properties")
    if node is None:
        node = ElementTree.Element("properties")
        case.insert(0, node)
    for old in [old for old in node if old.get("name") in properties]:
        node.remove(old)
    for name, value in properties.items():
        ElementTree.SubElement(node, "property", name=name, value=plain(value))


BAD = {"FAIL", "ERROR", "USAGE", "failed"}


class ReportWatcher:
    """One per session, on the controller. It holds the config, because pytest gives the hook of reports no config."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_sessionstart(self) -> None:
        """The whole report says what is emulated, also where no test ran."""
        emulation, xml = self.config.stash[STATE].emulation, self.config.stash.get(xml_key, None)
        if emulation is not None and xml is not None:
            xml.add_global_property("llmperf.emulated", str(emulation))

    @pytest.hookimpl(optionalhook=True)  # pytest-xdist's
    def pytest_configure_node(self, node: WorkerNode) -> None:
        """The run folders of all workers are one session."""
        node.workerinput["llmperf_session"] = self.config.stash[STATE].session_id

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be collected is no ERROR of a measurement."""
        if report.failed:
            self.config.stash[STATE].plain_failures += 1

    @pytest.hookimpl(trylast=True)  # after JUnit's own hook has made its node
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        state = self.config.stash[STATE]
        verdict = ending_of(report).verdict
        if verdict is not None and not excused(ending_of(report).excuse):
            state.verdicts[report.nodeid] = verdict
        if report.failed and is_ours(report):
            state.failed.add(report.nodeid)
        if report.when != "teardown":
            open_ = verdict in UNKNOWN and report.skipped and not hasattr(report, "wasxfail")
            (state.left_open.add if open_ else state.left_open.discard)(report.nodeid)
        if str(report.outcome) == "rerun":  # pytest-rerunfailures' own outcome, also of a worker that crashed
            state.rerun.setdefault(report.nodeid, []).append(verdict or "failed")
        elif report.when == "call":
            self._note_executions(report, verdict)
        own_end = report.when != "teardown"  # a teardown after an ERROR may fail for reasons of its own
        if report.failed and not (verdict == "ERROR" and (own_end or report.longreprtext.startswith("llmperf ERROR"))):
            state.plain_failures += 1

    def _note_executions(self, report: pytest.TestReport, verdict: str | None) -> None:
        """A test of ours that fails at first is never silently green, whichever plugin executed it again."""
        state = self.config.stash[STATE]
        earlier = list(ending_of(report).earlier) or state.rerun.get(report.nodeid, [])
        state.failed_first.pop(report.nodeid, None)
        if is_ours(report) and not report.failed and BAD.intersection(earlier):
            state.failed_first[report.nodeid] = ", then ".join([*earlier, verdict or report.outcome])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        first = self.config.stash[STATE].failed_first
        if first:
            terminalreporter.section("llmperf: not failed only after a failure", sep="=")
        for nodeid, execution_end in first.items():
            terminalreporter.write_line(f"{nodeid}: {execution_end}")


def is_ours(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """Whether a performance test reports."""
    return bool(ending_of(report).test) or any(
        name.startswith("llmperf") for name, _ in getattr(report, "user_properties", ()))
