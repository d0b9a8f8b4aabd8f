"""However a test ends, its run folder and JUnit tell of it what the terminal told."""

import pytest

from pytest_llmperf.report.junit import read_release

pytestmark = pytest.mark.emulated

SUITE = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm
from pytest_llmperf.errors import ServerDied

TRAFFIC = random_tokens(input=64, output=8, arrivals=closed(2), requests=6)
PASS, FAIL = "error_rate == 0", "ttft_p50 <= 1us"

@pytest.fixture
def run(perf): return perf.measure(vllm("llama-3.1-8b"), TRAFFIC, runs=2)

@pytest.fixture
def after(perf, run):
    endings = []
    yield endings.append
    for ending in endings:
        ending()

def dies(): raise ServerDied("gone")
def breaks(): assert not "foreign"

def test_it(perf, run, after):
    BODY
"""


@pytest.fixture
def ends(run, pytester):
    """What the folder and JUnit say of a test with this body."""
    def ends(body, *args):
        run(SUITE.replace("BODY", body), "--emulate", "h200", *args)
        (folder,) = pytester.path.glob(".llmperf/runs/*")
        return [(test.outcome, test.reason) for path in (folder, pytester.path / "junit.xml")
                for test in read_release(path)]

    return ends


@pytest.mark.parametrize(("body", "verdict", "reason"), [
    ("pytest.skip('no time')", "ERROR", "skipped: no time"),
    ("x = 1; assert x == 2", "FAILED", "assert 1 == 2"),
    ("raise ValueError('no')", "FAILED", "ValueError: no"),
    ("perf.check(run, str('speed <= 1'))", "USAGE", "this SLO cannot be read: there is no metric 'speed'"),
    ("pass", "REPORTED", ""),
    ("perf.check(run, PASS); pytest.skip('the rest')", "PASS", ""),
    ("after(lambda: perf.check(run, FAIL))", "FAIL", "ttft_p50: the 90 % interval"),
    ("after(lambda: perf.check(run, FAIL)); pytest.skip('no time')", "FAIL", "ttft_p50: the 90 % interval"),
    ("after(breaks); perf.check(run, PASS)", "FAILED", "in teardown: AssertionError: assert not 'foreign'"),
    ("after(breaks); perf.check(run, FAIL)", "FAIL", "ttft_p50: the 90 % interval"),
])
def test_run_folder_and_junit_contain_same_outcome(ends, body, verdict, reason):
    for ended in ends(body):
        assert ended[0] == verdict
        assert ended[1].startswith(reason)


def test_a_server_that_dies_in_a_teardown_is_an_error_in_both(ends):
    folder, junit = ends("after(dies); perf.check(run, PASS)")
    assert folder == ("ERROR", "gone")
    assert junit[0] == "ERROR"


def test_rerun_counts_last_verdict_in_run_folder_and_junit(ends):
    body = "perf.check(run, PASS); again = perf._execution.earlier; after(bool if again else breaks); assert again"
    assert ends(body, "--reruns=1") == [("PASS", "")] * 2


def test_secret_in_failure_message_is_masked(ends):
    folder, _ = ends("assert not run, 'with hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ'")
    assert folder == ("FAILED", "AssertionError: with ***")
