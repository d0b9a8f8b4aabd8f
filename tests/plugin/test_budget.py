"""--budget: which tests begin, in which order, and what the last lines say."""

import json
from pathlib import Path

import pytest

from pytest_llmperf.plugin.budget import Budget, duration, known_durations_s
from pytest_llmperf.plugin.options import budget_s

pytestmark = pytest.mark.emulated
SUITE = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

LOAD = random_tokens(input=32, output=8, arrivals=closed(1), requests=6)

@pytest.mark.parametrize("name", ["long", "short", "middle"])
def test_answers(perf, name):
    perf.check(perf.measure(vllm("llama-3.1-8b", max_model_len=4096), LOAD), "error_rate == 0")

def test_plain(): pass
"""


def remember(seconds, run="20260101T000000Z-000000", **facts):
    """An earlier emulated run in which the tests took so long."""
    folder = Path(".llmperf/runs", run)
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "any.json").write_text("{}")
    stored = {f"test_it.py::test_answers[{name}]": value for name, value in seconds.items()}
    content = {"schema": 1, "emulated": "emulated h200", "durations_s": stored} | facts
    (folder / "session.json").write_text(json.dumps({key: value for key, value in content.items() if value}))


def test_budget_begins_shortest_tests_and_names_the_others(run, pytester):
    remember({"long": 4000, "short": 1, "middle": 200})
    result, junit = run(SUITE, "--emulate", "h200", "--budget", "5min", "-v")
    result.assert_outcomes(passed=3, skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines([
        "*test_plain*", "*test_answers[[]short]*", "*test_answers[[]middle]*", "*test_answers[[]long]*SKIPPED*",
        "budget 5min: 2 decided (2 PASS), 1 not begun",
    ])
    (skipped,) = junit.iter("skipped")
    assert "not begun: about 67min needed" in skipped.get("message")


def test_budget_summary_lists_tests_that_fit_into_fifteen_more_minutes(run, pytester):
    remember({"long": 840, "short": 1, "middle": 300})
    result, _ = run(SUITE, "--emulate", "h200", "--budget", "200s")
    result.stdout.fnmatch_lines(["budget 4min: 1 decided (1 PASS), 2 not begun",
                                 "  15min more would be enough for test_answers[[]middle] (5min)"])


def test_budget_below_time_of_shortest_test_is_refused(run, pytester):
    remember({"long": 840, "short": 150, "middle": 300})
    result, _ = run(SUITE, "--emulate", "h200", "--budget", "60s")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*-budget 60s: the shortest test, test_it.py::test_answers[[]short], took 3min*"])
    result.stdout.no_fnmatch_line("budget 60s:*")


def test_first_run_begins_all_tests_and_stores_durations(run, pytester):
    result, _ = run(SUITE, "--emulate", "h200", "--budget", "10min")
    result.assert_outcomes(passed=4)
    durations_s = known_durations_s(Path(".llmperf/runs"), emulated=True)
    assert sorted(durations_s) == [f"test_it.py::test_answers[{name}]" for name in ("long", "middle", "short")]
    assert all(0 < seconds < 60 for seconds in durations_s.values())


def test_emulated_budget_ignores_durations_measured_on_hardware(run, pytester):
    remember({"long": 1, "short": 1, "middle": 1})
    remember({"long": 4000, "short": 4000, "middle": 4000}, "20260102T000000Z-000000", emulated="")
    result, _ = run(SUITE, "--emulate", "h200", "--budget", "5min")
    result.assert_outcomes(passed=4)
    assert set(known_durations_s(Path(".llmperf/runs"), emulated=False).values()) == {4000}


def test_budget_is_not_refused_while_duration_of_a_test_is_unknown(run, pytester):
    remember({"long": 840, "middle": 300})
    result, _ = run(SUITE, "--emulate", "h200", "--budget", "60s")
    result.assert_outcomes(passed=1, skipped=3)
    assert result.ret == 0


def test_workers_of_xdist_keep_to_the_budget(run, pytester):
    remember({"long": 4000, "short": 1, "middle": 2})
    result, _ = run(SUITE, "--emulate", "h200", "--budget", "5min", "-n", "2")
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(["budget 5min: 2 decided (2 PASS), 1 not begun"])


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15min", 900), ("1.5 h", 5400)])
def test_time_with_unit_is_read_as_seconds(text, seconds):
    assert budget_s(text) == seconds


@pytest.mark.parametrize("text", ["15", "0min", "-3s", "soon", "15 parsecs"])
def test_budget_that_is_no_time_is_refused(run, text):
    result, _ = run("def test_x(): pass", f"--budget={text}")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*is no time: write --llmperf-budget 15min*"])


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1s"), (119, "119s"), (120, "2min"), (121, "3min")])
def test_duration_is_rounded_up(seconds, text):
    assert duration(seconds) == text


def test_summary_counts_decided_and_open_tests_by_verdict():
    budget = Budget(900, {})
    budget._verdicts |= {"a": "PASS", "b": "INCONCLUSIVE", "c": "FAIL", "d": "PASS", "e": "ERROR"}
    assert [*budget.summary()] == [
        "budget 15min: 3 decided (1 FAIL, 2 PASS), 2 open (1 ERROR, 1 INCONCLUSIVE), 0 not begun"]


def test_summary_counts_tests_of_unknown_duration():
    budget = Budget(900, {})
    budget._not_begun |= {"t.py::test_a": "", "t.py::test_b": "100"}
    assert [*budget.summary()] == [
        "budget 15min: 0 decided, 2 not begun", "  15min more would be enough for test_b (100s)",
        "  no earlier run says how long 1 of them take",
    ]
