"""Completes pytest's JUnit file at the end of a session: each test that counts has its outcome as properties."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

if TYPE_CHECKING:
    from _pytest.junitxml import LogXML, _NodeReporter

    from pytest_llmperf.results.ended_test import EndedTest


class JUnit:
    """The file that pytest is about to write; without `--junitxml` nothing happens.

    Args:
        config: pytest's.
    """

    def __init__(self, config: pytest.Config) -> None:
        from _pytest.junitxml import xml_key

        self._xml = config.stash.get(xml_key, None)

    def complete(self, nodeid: str, test: EndedTest, *, missing: bool) -> None:
        """Set the properties of a test's entries.

        Args:
            nodeid: of the item.
            test: how it ended.
            missing: whether pytest has no report of its end, and so no entry.
        """
        from pytest_llmperf.report.properties import outcome_properties

        if self._xml is None:
            return
        if missing:
            file, _, name = nodeid.partition("::")
            report = pytest.TestReport(nodeid, (file, None, name), {}, "failed", test.error, "call")
            self._xml._opentestcase(report)._add_simple("error", test.decided_by)
        for reporter in _entries(self._xml, nodeid):
            if "to_xml" in vars(reporter):  # pytest has closed it
                _set(reporter.to_xml(), outcome_properties(test))
            else:
                for name, value in outcome_properties(test).items():
                    reporter.add_property(name, value)


def _entries(xml: LogXML, nodeid: str) -> list[_NodeReporter]:
    """What the file has of an item: an entry for each execution, and perhaps one more for a teardown."""
    from _pytest.junitxml import mangle_test_address

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
        ElementTree.SubElement(node, "property", name=name, value=value)
