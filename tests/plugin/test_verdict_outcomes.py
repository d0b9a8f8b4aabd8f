"""How verdicts become pytest outcomes, JUnit elements and exit codes."""

import pytest


def suite_giving(*verdicts):
    return f"def test_it(perf): give(perf, {', '.join(map(repr, verdicts))})\n"


@pytest.mark.parametrize(
    ("verdicts", "outcome", "tag", "code"),
    [
        (("PASS",), {"passed": 1}, None, 0),
        (("IMPROVED",), {"passed": 1}, None, 0),
        (("FAIL",), {"failed": 1}, "failure", 1),
        (("ERROR",), {"errors": 1}, "error", 10),
        (("INCONCLUSIVE",), {"skipped": 1}, "skipped", 11),
        (("INCONCLUSIVE", "FAIL"), {"failed": 1}, "failure", 1),
        (("FAIL", "ERROR"), {"errors": 1}, "error", 10),
        (("PASS", "INCONCLUSIVE"), {"skipped": 1}, "skipped", 11),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_worst_verdict_determines_outcome_and_exit_code(run, verdicts, outcome, tag, code):
    result, junit = run(suite_giving(*verdicts))
    result.assert_outcomes(**outcome)
    assert result.ret == code
    (case,) = junit.iter("testcase")
    assert {child.tag for child in case} - {"properties", "system-out", "system-err"} == ({tag} if tag else set())
    suite = next(junit.iter("testsuite"))
    assert suite.get("failures") == str(int(tag == "failure"))
    assert suite.get("errors") == str(int(tag == "error"))


def test_failing_teardown_after_error_is_a_separate_error(run):
    text = """
import pytest

@pytest.fixture
def own():
    yield
    assert not "my own"

def test_it(own, perf): give(perf, "ERROR")
"""
    result, junit = run(text)
    result.assert_outcomes(errors=2)
    assert result.ret == 1
    assert [case.get("name") for case in junit.iter("testcase")] == ["test_it", "test_it"]


def test_under_xdist_every_verdict_arrives_at_the_controller(run):
    verdicts = ("PASS", "FAIL", "ERROR", "INCONCLUSIVE")
    text = "".join(f"def test_{v.lower()}(perf): give(perf, {v!r})\n" for v in verdicts)
    result, junit = run(text, "-n", "2")
    result.assert_outcomes(passed=1, failed=1, errors=1, skipped=1)
    assert result.ret == 1
    outcomes = {"failure", "error", "skipped"}
    tags = {case.get("name"): {child.tag for child in case} & outcomes for case in junit.iter("testcase")}
    expected = {"pass": set(), "fail": {"failure"}, "error": {"error"}, "inconclusive": {"skipped"}}
    assert tags == {f"test_{name}": tag for name, tag in expected.items()}
    suite = next(junit.iter("testsuite"))
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("1", "1", "1")


@pytest.mark.parametrize(("verdict", "code"), [("ERROR", 10), ("INCONCLUSIVE", 11)])
def test_exit_codes_are_the_same_under_xdist(run, verdict, code):
    result, _ = run(suite_giving(verdict), "-n", "2")
    assert result.ret == code


def test_each_skip_shows_a_separate_reason(run):
    """pytest folds equal skips of one place and gives every line of the summary the word of the first."""
    text = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_open(perf, n):
    give(perf, "INCONCLUSIVE" if n == 1 else "NO_BASELINE")

@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.l4
def test_elsewhere(perf, n): pass
"""
    result, _ = run(text, "-rs", "--llmperf-missing-baseline=skip")
    words = ("SKIPPED [", "INCONCLUSIVE [", "NO_BASELINE [")
    summary = [line for line in result.stdout.lines if line.startswith(words)]
    assert [line.split("] ")[0] for line in summary] == ["SKIPPED [1", "SKIPPED [1", "SKIPPED [2"]
    assert "llmperf INCONCLUSIVE: test_open[1]" in summary[0]
    assert "llmperf NO_BASELINE: test_open[2]" in summary[1]
    assert "needs l4" in summary[2]


def test_error_verdict_is_reported_in_phase_call_and_not_in_setup(run):
    result, junit = run(suite_giving("ERROR"))
    result.stdout.fnmatch_lines(["*ERROR at call of test_it*", "*because of ERROR*"])
    (error,) = junit.iter("error")
    assert "setup" not in error.get("message")
    assert "because of ERROR" in error.text


def test_the_verdict_and_the_table_are_in_junit(run):
    _, junit = run(suite_giving("FAIL"))
    properties = {node.get("name"): node.get("value") for node in junit.iter("property")}
    assert properties["llmperf.verdict"] == "FAIL"
    assert properties["llmperf.decided_by"] == "2 ms  ttft_p99 <= FAIL"
    (failure,) = junit.iter("failure")
    for word in ("metric", "limit", "measured", "interval", "verdict", "because of FAIL"):
        assert word in failure.text


def test_inconclusive_is_a_failure_where_asked(run):
    result, junit = run(suite_giving("INCONCLUSIVE"), "--llmperf-inconclusive=fail")
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    assert len(list(junit.iter("failure"))) == 1


@pytest.mark.parametrize("option", ["--llmperf-missing-baseline=skip", "--update-baselines-new"])
def test_missing_baseline_does_not_hide_inconclusive_verdict(run, option):
    text = suite_giving("INCONCLUSIVE", "NO_BASELINE")
    assert run(text, option, "--llmperf-inconclusive=fail")[0].parseoutcomes()["failed"] == 1
    assert run(text, option)[0].parseoutcomes()["skipped"] == 1
    assert run(text, "--llmperf-missing-baseline=fail")[0].parseoutcomes()["failed"] == 1


def test_infrastructure_error_in_test_keeps_server_log(run):
    text = """
from pytest_llmperf.errors import Evidence, ServerDied

def test_it(perf):
    evidence = Evidence("vllm serve", "signal 9", 3.0, ("last \\x1b[31mwords \\x00",))
    raise ServerDied("The server died: signal 9.", evidence)
"""
    result, junit = run(text)
    assert result.ret == 10
    (error,) = junit.iter("error")
    assert "signal 9" in error.text
    assert "words" in error.text  # and the file parsed, whatever the server logged
    (captured,) = junit.iter("system-err")
    assert "words" in captured.text


def test_assertion_failure_remains_a_failure(run):
    result, _ = run("def test_it(perf): assert 1 == 2\n")
    result.assert_outcomes(failed=1)
    assert result.ret == 1


def test_session_with_fail_and_error_exits_with_1(run):
    result, _ = run("def test_a(perf): give(perf, 'FAIL')\ndef test_b(perf): give(perf, 'ERROR')\n")
    assert result.ret == 1


def test_a_pass_after_a_fail_is_not_silently_green(run):
    text = """
from pathlib import Path

def test_it(perf):
    seen = Path("seen")
    give(perf, "PASS" if seen.exists() else "FAIL")
    seen.touch()
"""
    result, _ = run(text, "--reruns=1")
    assert result.ret == 12


def test_verdicts_do_not_need_assertions(pytester, run, monkeypatch):
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    result, _ = run(suite_giving("FAIL"), "-W", "ignore::pytest.PytestConfigWarning")
    assert result.ret == 1


@pytest.mark.parametrize("verdict", ["FAIL", "INCONCLUSIVE", "PASS"])
def test_terminal_controls_in_a_reason_are_not_printed(run, verdict):
    text = f"""
from dataclasses import replace
from pytest_llmperf.errors import InfrastructureError

EVIL = "server said \\x1b]0;title\\x07\\x1b[2J\\x9b31m\\u202e"

def test_check(perf):
    give(perf, {verdict!r})
    perf.results[0] = replace(perf.results[0], reason=EVIL)

def test_raises(perf):
    raise InfrastructureError(EVIL)
"""
    result, _ = run(text, "-rA", "-v")
    shown = result.stdout.str() + result.stderr.str()
    assert "server said" in shown
    assert {char for char in shown if not char.isprintable()} == {"\n"}
