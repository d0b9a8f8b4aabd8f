"""How a session's tests ended, read back; and the run that a user names."""

import json

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.results.ended_test import EndedTest
from pytest_llmperf.results.reader import find_run, read_run, stored_runs
from pytest_llmperf.results.session_outcomes import FILE, RecordedOutcome, read_outcomes, write_outcomes
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.slo.model import Comparison

PASSED = CheckResult("ttft_p50 <= 1s", Verdict.PASS, "ttft_p50", Unit.MS, Comparison.AT_MOST, 1000, 50)


def test_recorded_outcome_precedes_outcome_of_run_file(tmp_path):
    path = write_test(tmp_path, "t.py::test_a", [], [PASSED])
    write_outcomes(tmp_path, [RecordedOutcome("t.py::test_a", path.name, "FAILED", "in teardown: TypeError: x"),
                              RecordedOutcome("t.py::test_b", "", "USAGE", "no model 'x'")])
    assert [(test.test, test.outcome, test.reason) for test in read_run(tmp_path)] == [
        ("t.py::test_a", "FAILED", "in teardown: TypeError: x"), ("t.py::test_b", "USAGE", "no model 'x'")]


def test_test_that_an_exception_ended_has_the_exception_and_counts_once(tmp_path):
    write_test(tmp_path, "t.py::test_a", [], [], complete=False)
    write_outcomes(tmp_path, [RecordedOutcome("t.py::test_a", "", "FAILED", "TypeError: x")])
    assert [(test.test, test.outcome, test.reason) for test in read_run(tmp_path)] == [
        ("t.py::test_a", "FAILED", "TypeError: x")]


def test_resumed_session_keeps_outcomes_of_earlier_tests(tmp_path):
    first, second = (RecordedOutcome(f"t.py::test_{name}", "", "SKIPPED", "no time") for name in "ab")
    write_outcomes(tmp_path, [first, second])
    again = RecordedOutcome(second.test, "", "USAGE", "typo")
    write_outcomes(tmp_path, [again])
    assert set(read_outcomes(tmp_path)) == {first, again}


@pytest.mark.parametrize("content", [
    "[]", "{", '{"schema": 2, "tests": []}', '{"schema": 1, "tests": [{"test": "a"}]}',
    json.dumps({"schema": 1, "tests": [{"test": "a", "file": "", "outcome": "GREEN", "error": ""}]}),
])
def test_invalid_outcomes_are_refused(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(BaselineError, match="Delete it"):
        read_run(tmp_path)


@pytest.fixture
def runs(tmp_path):
    names = ("20260101T000000Z-aa11bb", "20260102T000000Z-aa22cc")
    for name in names:
        write_outcomes(tmp_path / "runs" / name, [RecordedOutcome("t.py::test_a", "", "USAGE", "typo")])
    return [tmp_path / "runs" / name for name in names]


@pytest.mark.parametrize(("named", "number"), [
    ("newest", 1), ("20260101T000000Z-aa11bb", 0), ("aa22cc", 1), ("20260101", 0), ("runs/20260101T000000Z-aa11bb", 0),
])
def test_run_is_named_by_path_id_part_of_id_or_newest(runs, tmp_path, named, number):
    assert stored_runs(tmp_path / "runs") == runs
    assert find_run(named, tmp_path / "runs", tmp_path) == runs[number]


@pytest.mark.parametrize(("named", "complaint"), [
    ("aa", "aa: 2 runs have this in their id: 20260102T000000Z-aa22cc, 20260101T000000Z-aa11bb. Write more of it."),
    ("zz", "zz: there is no such path, and no run in .* has this in its id. Stored are 20260102"),
])
def test_ambiguous_or_unknown_run_is_refused_with_the_stored_ids(runs, tmp_path, named, complaint):
    with pytest.raises(UsageError, match=complaint):
        find_run(named, runs[0].parent, tmp_path)


CLAIM = CheckResult("e2el_p50(b) / e2el_p50(a) >= 2", Verdict.PASS, "e2el_p50(b) / e2el_p50(a)", Unit.RATIO,
                    Comparison.AT_LEAST, 2, 9)
GUARD = CheckResult("ttft_p50(a) / ttft_p50(b) <= 1.15", Verdict.PASS, "ttft_p50(a) / ttft_p50(b)", Unit.RATIO,
                    Comparison.AT_MOST, 1.15, 1.14, facts={"guard": "ttft_p50"})
PRICE = CheckResult("tpot_mean(a) / tpot_mean(b) <= 2", Verdict.PASS, "tpot_mean(a) / tpot_mean(b)", Unit.RATIO,
                    Comparison.AT_MOST, 2, 1.99, facts={"allowed": "tpot_mean"})


def test_claim_decides_before_prices_and_guards_with_less_headroom():
    assert EndedTest("t", "PASS", (GUARD, PRICE, CLAIM)).decided_by == "9× (≥ 2×)  e2el_p50(b) / e2el_p50(a)"


def test_failed_guard_is_called_a_guard_and_names_allow():
    failed = CheckResult(GUARD.subject, Verdict.FAIL, GUARD.metric, Unit.RATIO, Comparison.AT_MOST, 1.15, 1.5,
                         facts=GUARD.facts)
    assert EndedTest("t", "FAIL", (CLAIM, failed)).decided_by == (
        '1.5× (≤ 1.15×)  guard ttft_p50(a) / ttft_p50(b); accepted by allow={"ttft_p50": …}')


def test_headline_of_a_search_is_the_proven_rate():
    search = CheckResult("max_rate >= 30/s", Verdict.PASS, "max_rate", Unit.REQUESTS_PER_S, Comparison.AT_LEAST, 30,
                         71.32, facts={"proven_rate": 32.0})
    assert EndedTest("t", "PASS", (search,)).decided_by == "32/s, proven  max_rate >= 30/s"
