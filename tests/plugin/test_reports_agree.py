"""However a test ends, console, page, `llmperf show`, JUnit and Markdown have the test, its outcome and its row."""

import html
import re
from pathlib import Path

import pytest

from pytest_llmperf.report.comment import CommentedRun, comment
from pytest_llmperf.report.junit import read_release
from pytest_llmperf.report.text import overview
from pytest_llmperf.results.ended_test import OUTCOMES, short_id
from pytest_llmperf.results.reader import read_run

pytestmark = pytest.mark.emulated

SUITE = """
import os
import pytest
from pytest_llmperf import closed, random_tokens, vllm
from pytest_llmperf.errors import ServerDied

SPEC, LOAD = vllm("llama-3.1-8b"), random_tokens(input=64, output=8, arrivals=closed(2), requests=6)

def measured(perf): return perf.measure(SPEC, LOAD, runs=2)
def raises(): raise TypeError("unsupported")
def dies(): raise ServerDied("It died: signal 9.")

@pytest.fixture
def broken(perf): raises()

@pytest.fixture
def no_model(perf): perf.measure(vllm("no-such-model"), LOAD)

@pytest.fixture
def skips(perf): pytest.skip("no time")

@pytest.fixture
def breaks_late(perf):
    yield
    raises()

@pytest.fixture
def checks_late(perf):
    yield
    perf.check(measured(perf), "ttft_p50 <= 1us")

def test_pass(perf): perf.check(measured(perf), "ttft_p50 <= 5s", "error_rate == 0")
def test_fail(perf): perf.check(measured(perf), "ttft_p50 <= 1us")
def test_missing(perf): perf.compare_with_baseline(measured(perf))
def test_reported(perf): measured(perf)
def test_empty_loop(perf):
    for load in []:
        perf.check(perf.measure(SPEC, load), "error_rate == 0")
@pytest.mark.engine(SPEC)
def test_engine_alone(engine): pass
def test_type_error(perf): raises()
def test_type_error_after_pass(perf): perf.check(measured(perf), "error_rate == 0"); raises()
def test_type_error_after_fail(perf): perf.check(measured(perf), "ttft_p50 <= 1us"); raises()
def test_usage(perf): perf.check(measured(perf), str("speed <= 1"))
def test_usage_before(perf): perf.measure(vllm("no-such-model"), LOAD)
def test_dead(perf): dies()
def test_broken_fixture(broken): pass
def test_usage_in_fixture(no_model): pass
def test_skipping_fixture(skips): pass
def test_broken_teardown(breaks_late, perf): perf.check(measured(perf), "error_rate == 0")
def test_broken_teardown_after_fail(breaks_late, perf): perf.check(measured(perf), "ttft_p50 <= 1us")
def test_checked_in_teardown(checks_late): pass
def test_skip(perf): pytest.skip("no time")
def test_skip_after_measuring(perf): measured(perf); pytest.skip("no time")
def test_skip_after_pass(perf): perf.check(measured(perf), "error_rate == 0"); pytest.skip("the rest")
@pytest.mark.skip(reason="not now")
def test_skip_marker(perf): pass
@pytest.mark.h100
def test_other_hardware(perf): pass
@pytest.mark.xfail(reason="slow")
def test_xfail(perf): raises()
@pytest.mark.xfail(reason="slow")
def test_xpass(perf): perf.check(measured(perf), "error_rate == 0")
@pytest.mark.xfail(reason="slow", strict=True)
def test_strict_xpass(perf): perf.check(measured(perf), "error_rate == 0")
@pytest.mark.xfail(reason="slow")
def test_xfail_of_fail(perf): perf.check(measured(perf), "ttft_p50 <= 1us")
@pytest.mark.parametrize("limit", ["5s", "1us"])
def test_a_long_name_whose_parameter_says_which_of_the_two_it_is(perf, limit):
    perf.check(measured(perf), f"ttft_p50 <= {limit}")
class TestFirst:
    def test_method(self, perf): perf.check(measured(perf), "error_rate == 0")
class TestSecond:
    def test_method(self, perf): raises()
@pytest.mark.timeout(1)
def test_timeout(perf):
    import time
    time.sleep(30)
def test_plain(): assert True
def test_plain_failure(): raises()
def test_claim(perf):
    few, more = (random_tokens(input=64, output=size, arrivals=closed(2), requests=12) for size in (8, 64))
    perf.claim(vllm("llama-3.1-8b", max_num_seqs=16), vllm("llama-3.1-8b", max_num_seqs=1), more,
               "e2el_p50(b) / e2el_p50(a) >= 1.1", allow={"tpot_mean": 100.0})
LAST
"""
EXPECTED = {
    "test_pass": "PASS", "test_fail": "FAIL", "test_missing": "STORED", "test_reported": "REPORTED",
    "test_empty_loop": "REPORTED", "test_engine_alone": "REPORTED", "test_type_error": "FAILED",
    "test_type_error_after_pass": "FAILED", "test_type_error_after_fail": "FAIL", "test_usage": "USAGE",
    "test_usage_before": "USAGE", "test_dead": "ERROR", "test_broken_fixture": "FAILED",
    "test_usage_in_fixture": "USAGE", "test_skipping_fixture": "SKIPPED", "test_broken_teardown": "FAILED",
    "test_broken_teardown_after_fail": "FAIL", "test_checked_in_teardown": "FAIL", "test_skip": "SKIPPED",
    "test_skip_after_measuring": "ERROR", "test_skip_after_pass": "PASS", "test_skip_marker": "SKIPPED",
    "test_other_hardware": "SKIPPED", "test_xfail": "SKIPPED", "test_xpass": "PASS", "test_strict_xpass": "FAILED",
    "test_xfail_of_fail": "FAIL", "TestFirst::test_method": "PASS", "TestSecond::test_method": "FAILED",
    "test_a_long_name_whose_parameter_says_which_of_the_two_it_is[5s]": "PASS",
    "test_a_long_name_whose_parameter_says_which_of_the_two_it_is[1us]": "FAIL",
    "test_timeout": "ERROR", "test_plain_failure": "FAILED", "test_claim": "PASS",
}  # fmt: skip
MODULES = {
    "test_unreadable": ("from pytest_llmperf import vllm\ndef test_it(perf) pass", "FAILED"),
    "test_no_import": ("from pytest_llmperf import vllm\nimport no_such_module", "FAILED"),
    "test_bad_spec": ("from pytest_llmperf import by_kind\nby_kind(h900={})", "USAGE"),
}
EXTRA = {
    (): ("def test_interrupted(perf): measured(perf); raise KeyboardInterrupt", {"test_interrupted": "ERROR"}, 2),
    ("-n", "2"): ("def test_crash(perf): os._exit(1)", {"test_crash": "ERROR"}, 1),
}


@pytest.mark.parametrize("options", EXTRA, ids=["plain", "xdist"])
def test_five_reports_have_same_tests_outcomes_and_rows(run, pytester, options):
    last, expected, code = EXTRA[options]
    for name, (text, _) in MODULES.items():
        (pytester.path / f"{name}.py").write_text(text)
    result, junit = run(SUITE.replace("LAST", last), "--emulate", "h200", "--continue-on-collection-errors", "-v",
                        "--update-baselines-new", *options)
    assert result.ret == code
    folder = next(pytester.path.glob(".llmperf/runs/*"))
    stored = {test.test: test for test in read_run(folder)}
    outcomes = {test.removeprefix("test_it.py::"): ended.outcome for test, ended in stored.items()}
    assert outcomes == EXPECTED | expected | {f"{name}.py": outcome for name, (_, outcome) in MODULES.items()}
    rows = {test: (ended.outcome, ended.ending.decided_by) for test, ended in stored.items()}
    assert console_rows(result.outlines, rows) == {test: outcome for test, (outcome, _) in rows.items()}
    assert page_rows(folder / "report.html") == {test: outcome for test, (outcome, _) in rows.items()}
    assert {line.split()[1]: line.split()[0] for line in overview(list(stored.values())).splitlines()
            if line.split()[0] in OUTCOMES} == {test: outcome for test, (outcome, _) in rows.items()}
    of_junit = {test.test: test for test in read_release(pytester.path / "junit.xml")}
    assert {test: ended.outcome for test, ended in of_junit.items()} == {test: row[0] for test, row in rows.items()}
    assert {test: ended.ending.decided_by for test, ended in of_junit.items()} == {
        test: row[1] if len(row[1]) <= 200 else f"{row[1][:199]}…" for test, row in rows.items()
    } | {"test_it.py::test_missing": "baseline stored; the next run is compared with it"}
    text = comment(CommentedRun("new", list(of_junit.values())))
    for test, (outcome, _) in rows.items():
        assert re.search(rf"\| \S+ {outcome.replace('_', ' ')} \| `{re.escape(short_id(test))}`", text), test
    counts = re.search(r"llmperf: (.*?) =", result.stdout.str())[1]
    assert counts in overview(list(stored.values()))
    assert counts.replace("_", " ") in CommentedRun("new", list(of_junit.values())).status[1]
    missing = next(case for case in junit.iter("testcase") if case.get("name") == "test_missing")
    properties = {element.get("name"): element.get("value") for element in missing.iter("property")}
    assert (properties["llmperf.verdict"], properties["llmperf.stored"]) == ("NO_BASELINE", "baselines")


def console_rows(lines, rows):
    start = next(number for number, line in enumerate(lines) if "= llmperf: " in line)
    ids = {test.partition("::")[2] or test: test for test in rows}
    shown = {}
    for line in lines[start + 1:]:
        if line == "next:":
            break
        outcome, _, rest = line.partition(" ")
        if outcome in OUTCOMES and rest.split():
            start, cut, end = rest.split()[0].partition("…")
            (full,) = (test for short, test in ids.items()
                       if short == start or (cut and short.startswith(start) and short.endswith(end)))
            shown[full] = outcome
    return shown


def page_rows(path: Path):
    text = html.unescape(path.read_text())
    return dict(reversed(pair) for pair in re.findall(
        r'data-verdict="(\w+)"(?: open)?>\s*<summary>.*?<code class="id">(.*?)</code>', text, re.DOTALL))
