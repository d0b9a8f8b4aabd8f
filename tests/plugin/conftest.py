"""Each test runs a real pytest with our plugin in a folder of its own."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.conftest import BUSY_MACHINE, STEADY_AT_ONCE

# Results are handed in as values: how they come about is tested elsewhere, here it is what pytest makes of them.
RESULTS = """
from pytest_llmperf.results.check import Stated
from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.slo.model import Comparison

def give(perf, *verdicts):
    for verdict in verdicts:
        perf.record(CheckResult(f"ttft_p99 <= {verdict}", Verdict(verdict), "ttft_p99", Unit.MS, Comparison.AT_MOST,
                                1.0, 2.0, cause=Stated(f"because of {verdict}")))
"""


@pytest.fixture
def run(pytester):
    """Run pytest on a test file's text; gives (result, JUnit root)."""
    pytester.makepyfile(results=RESULTS)
    pytester.syspathinsert()

    def run(text, *args):
        pytester.makepyfile(test_it=f"from results import give\n\n{text}")
        if "real" in args:
            Path(pytester.path, "llmperf.toml").write_text(BUSY_MACHINE)
            pytester.makeconftest(STEADY_AT_ONCE)
        result = pytester.runpytest_subprocess("--junitxml=junit.xml", "-p", "no:cacheprovider", *args)
        path = Path(pytester.path, "junit.xml")
        return result, ET.parse(path).getroot() if path.exists() else None

    return run


@pytest.fixture
def stored_checks():
    """The checks of a JUnit test case, from the run file that it names; none if it names no file."""

    def read(case):
        paths = [element.get("value") for element in case.iter("property") if element.get("name") == "llmperf.run_file"]
        return json.loads(Path(paths[-1]).read_text())["checks"] if paths else []

    return read
