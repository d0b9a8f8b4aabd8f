"""A measurement that no check judges is REPORTED, or an ERROR where the test contains a check. A FAIL stays red."""

import pytest

from pytest_llmperf.report.junit import read_release

pytestmark = pytest.mark.emulated

HEAD = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

TRAFFIC = random_tokens(input=64, output=8, arrivals=closed(2), requests=6)
PASS, FAIL = "error_rate == 0", "ttft_p50 <= 1us"

@pytest.fixture
def run(perf): return perf.measure(vllm("llama-3.1-8b"), TRAFFIC, runs=2)
"""
REPORTED = """
def test_figures(run): pass
def test_ratio(perf, run):
    other = perf.measure(vllm("llama-3.1-8b"), TRAFFIC, runs=2)
    perf.compare("ttft_p50(a) / ttft_p50(b)", a=run, b=other)
"""
UNREACHED = """
def test_returned(perf, run):
    return
    perf.check(run, PASS)

def test_interrupt_is_swallowed(perf, run):
    try:
        raise KeyboardInterrupt
        perf.check(run, PASS)
    except KeyboardInterrupt:
        pass

def test_skipped(run): pytest.skip("no time")
def test_xfailed(run): pytest.xfail("slow")

@pytest.mark.xfail
def test_marked(run): assert not run

@pytest.fixture
def skips(run): pytest.skip("in a fixture")
def test_skipped_in_setup(skips): pass

@pytest.fixture
def checks_late(perf, run):
    yield
    if CHECKED:
        perf.check(run, PASS)
CHECKED = False
def test_unchecked_in_teardown(checks_late): pass
"""
CHECKED = """
@pytest.fixture
def checks_late(perf, run):
    yield
    perf.check(run, PASS)

def test_in_teardown(checks_late): pass
def test_skipped_then_checked_in_teardown(checks_late): pytest.skip("the rest")
"""


@pytest.fixture
def verdicts(run, pytester):
    """The result, and what the run folder and JUnit say of each test, which must be the same."""
    def verdicts(text, *args):
        result, _ = run(HEAD + text, "--emulate", "h200", *args)
        (folder,) = pytester.path.glob(".llmperf/runs/*")
        verdict_by_test, junit = (
            {test.test.rpartition("::")[2]: (test.outcome, test.reason) for test in read_release(path)}
            for path in (folder, pytester.path / "junit.xml")
        )
        assert {name: verdict for name, (verdict, _) in verdict_by_test.items()} == {
            name: verdict for name, (verdict, _) in junit.items()}  # fmt: skip
        return result, verdict_by_test

    return verdicts


def test_measurement_without_check_has_a_line_and_a_count(verdicts):
    result, verdict_by_test = verdicts(REPORTED)
    assert result.ret == 0
    result.assert_outcomes(passed=2)
    assert verdict_by_test == {"test_figures": ("REPORTED", ""), "test_ratio": ("REPORTED", "")}
    result.stdout.fnmatch_lines(["*= llmperf: 2 REPORTED =*", "REPORTED  test_figures  measured, nothing checked",
                                 "REPORTED  test_ratio * ttft_p50(a) / ttft_p50(b)"])


@pytest.mark.parametrize("dist", [(), ("-n", "1")], ids=["plain", "xdist"])
def test_measurement_without_check_is_red_where_that_is_asked_for(verdicts, dist):
    result, verdict_by_test = verdicts(REPORTED, "--llmperf-unchecked=fail", *dist)
    assert result.ret == 1
    result.assert_outcomes(failed=2)
    assert {verdict for verdict, _ in verdict_by_test.values()} == {"REPORTED"}
    result.stdout.fnmatch_lines(["llmperf REPORTED: test_figures measured and checked nothing. Add perf.check(run, *"])


def test_measurement_without_reached_check_is_an_error(verdicts):
    result, verdict_by_test = verdicts(UNREACHED)
    assert result.ret == 1  # the failed assertion; without it 10
    result.assert_outcomes(passed=1, failed=1, errors=6)
    after = "(after measuring, before any check). Let every path through the test reach a check*"
    assert {name: verdict for name, (verdict, _) in verdict_by_test.items()} == {
        name: "FAILED" if name == "test_marked" else "ERROR" for name in verdict_by_test}
    assert verdict_by_test["test_skipped"][1].startswith(f"skipped: no time {after[:-1]}")
    assert verdict_by_test["test_skipped_in_setup"][1].startswith("skipped: in a fixture (after measuring")
    assert verdict_by_test["test_xfailed"][1].startswith("xfailed: slow (after measuring")
    assert verdict_by_test["test_returned"][1].startswith("returned after measuring, before any check.")
    assert verdict_by_test["test_marked"][1].startswith("assert not ")
    result.stdout.fnmatch_lines(["ERROR * test_returned *", "ERROR * test_interrupt_is_swallowed *"])


def test_check_in_a_teardown_is_the_verdict(verdicts):
    result, verdict_by_test = verdicts(CHECKED)
    assert result.ret == 0
    assert verdict_by_test == {"test_in_teardown": ("PASS", ""), "test_skipped_then_checked_in_teardown": ("PASS", "")}
    result.stdout.fnmatch_lines(["*= llmperf: 2 PASS =*"])


FAILS = """
import sys

def test_xfail(perf, run): perf.check(run, FAIL); pytest.xfail("slow")
def test_sys_exit(perf, run): perf.check(run, FAIL); sys.exit(0)
def test_own_exception(perf, run): perf.check(run, FAIL); assert not run
def test_results_cleared(perf, run): perf.check(run, FAIL); perf.results.clear()

@pytest.mark.xfail
def test_marker(perf, run): perf.check(run, FAIL)

@pytest.fixture
def skips_after_fail(perf, run): perf.check(run, FAIL); pytest.skip("the rest")
def test_fixture(skips_after_fail): pass
"""


@pytest.mark.parametrize("dist", [(), ("-n", "2")], ids=["plain", "xdist"])
def test_fail_stays_red_however_the_test_goes_on(verdicts, dist):
    result, verdict_by_test = verdicts(FAILS, *dist)
    assert result.ret == 1
    result.assert_outcomes(failed=5, errors=1)
    assert {name: verdict for name, (verdict, _) in verdict_by_test.items()} == dict.fromkeys(verdict_by_test, "FAIL")
    assert len(verdict_by_test) == 6
    result.stdout.fnmatch_lines(["*= llmperf: 6 FAIL =*"])


SILENT = """
@pytest.fixture
def ends_later(run): yield
"""
EXIT = """
def test_exit(perf, run):
    perf.check(run, LIMIT)
    pytest.exit("enough", returncode=0)

def test_next(perf): pass
"""


@pytest.mark.parametrize("option", [(), ("-p", "no:terminal"), ("-n", "1")], ids=["plain", "no terminal", "xdist"])
def test_exit_after_a_fail_stops_the_session_red(verdicts, option):
    result, verdict_by_test = verdicts(EXIT.replace("LIMIT", "FAIL"), *option)
    assert result.ret == 1
    assert verdict_by_test["test_exit"][0] == "FAIL"
    if "no:terminal" not in option:
        result.stdout.fnmatch_lines(["FAIL  test_exit *"])
        result.assert_outcomes(failed=1)


def test_exit_after_pass_keeps_exit_code(run):
    result, _ = run(HEAD + EXIT.replace("LIMIT", "PASS"), "--emulate", "h200")
    assert result.ret == 0


@pytest.mark.parametrize("fixture", ["", SILENT], ids=["", "with a fixture that ends later"])
def test_exit_before_any_check_is_an_error(verdicts, fixture):
    text = EXIT.replace("perf.check(run, LIMIT)", "pass")
    result, verdict_by_test = verdicts(fixture + text.replace("(perf, run)", "(ends_later)" if fixture else "(run)"))
    assert result.ret == 10
    assert verdict_by_test["test_exit"][1].startswith("pytest.exit: enough (after measuring, before any check)")


def test_exit_in_a_test_after_one_that_failed_is_no_green_session(run):
    text = """
import pytest

def test_it(perf): give(perf, "FAIL")
def test_next(): pytest.exit("enough", returncode=0)
"""
    result, _ = run(text)
    assert result.ret == 1
