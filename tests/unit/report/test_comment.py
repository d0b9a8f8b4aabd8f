"""The Markdown of a comment: worst first, whatever a test is called, and never longer than a service takes."""

import re
from dataclasses import replace

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.report.comment import CommentedRun, comment
from pytest_llmperf.report.html.session_facts import SessionFacts
from pytest_llmperf.report.release import compare_runs
from pytest_llmperf.results.check import Stated
from pytest_llmperf.results.measurement import Measurement, Run, TestResult
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval

CONDITIONS = {"hardware": "h200", "engine": "vllm", "engine.version": "0.26.0", "formulas": "tpot.1 ttft.1"}


def measured(tpot_ms=10.0, **conditions):
    runs = tuple(Run.of_values(seed, 1, {"tpot_mean": tpot_ms * noise, "ttft_p50": 50 * noise})
                 for seed, noise in enumerate((1.0, 1.002, 0.998)))
    return Measurement("vllm('m')", "w", CONDITIONS | conditions, runs)


def compared_check(verdict, percent):
    before, after = 10.0, 10.0 + percent / 10
    return CheckResult("baseline tpot_mean", verdict, "tpot_mean", Unit.CHANGE, Comparison.AT_MOST, 0.05, percent / 100,
                       Interval(percent / 100 - 0.01, percent / 100 + 0.01, 0.95), facts={"negligible": 0.02},
                       before=before, after=after)


def ran(name="t.py::test_x", verdict=Verdict.PASS, *checks, measurement=None, **fields):
    cause = None if verdict is Verdict.PASS else Stated("because")
    stated = CheckResult("tpot_mean <= 1s", verdict, "tpot_mean", cause=cause)
    return TestResult(name, True, None, (measurement or measured(),), checks or (stated,), **fields)


def rows(text):
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| verdict")]


def against(old, new):
    return comment(CommentedRun("v2", new, base="v1", compared=compare_runs(old, new)))


def test_comment_of_regression_shows_change_with_interval_limit_build_and_commands(message):
    tests = [
        ran("t.py::test_small", Verdict.FAIL, compared_check(Verdict.FAIL, 7)),
        ran("t.py::test_large", Verdict.FAIL, compared_check(Verdict.FAIL, 30), owner="team-serving"),
        ran("t.py::test_open", Verdict.INCONCLUSIVE), ran("t.py::test_good"),
    ]
    facts = SessionFacts(origin=(("commit", "abc123"),), duration_s=60.0)
    message(comment(CommentedRun("run-1", tests, facts, ("-m", "h200"), link="https://ci/7", report="https://ci/7/r")))


def test_comment_against_run_lists_worse_tests_before_red_tests_and_unchanged_tests(message):
    old = [ran("t.py::test_a"), ran("t.py::test_b"), ran("t.py::test_same"), ran("t.py::test_gone"),
           ran("t.py::test_red", Verdict.FAIL)]
    new = [ran("t.py::test_a", measurement=measured(11, **{"engine.version": "0.33.0"})),
           ran("t.py::test_b", measurement=measured(9)), ran("t.py::test_same"), ran("t.py::test_red", Verdict.FAIL),
           ran("t.py::test_new", Verdict.ERROR)]
    message(against(old, new))


def test_tests_are_sorted_by_excess_over_the_limit():
    tests = [ran(f"t.py::test_{percent}", Verdict.FAIL, compared_check(Verdict.FAIL, percent))
             for percent in (7, 30, 9)]
    assert re.findall(r"`test_(\d+)`", "\n".join(rows(comment(CommentedRun("r", tests))))) == ["30", "9", "7"]


@pytest.mark.parametrize(("verdicts", "state", "description"), [
    ((Verdict.PASS, Verdict.IMPROVED), "success", "1 IMPROVED, 1 PASS"),
    ((Verdict.PASS, Verdict.INCONCLUSIVE), "success", "1 INCONCLUSIVE, 1 PASS"),
    ((Verdict.PASS, Verdict.NO_BASELINE), "failure", "1 NO BASELINE, 1 PASS"),
    ((Verdict.PASS, Verdict.FAIL), "failure", "1 FAIL, 1 PASS"),
    ((Verdict.ERROR, Verdict.FAIL), "failure", "1 ERROR, 1 FAIL"),
])
def test_status_check_is_red_for_what_fails_in_ci(verdicts, state, description):
    tests = [ran(f"t.py::test_{number}", verdict) for number, verdict in enumerate(verdicts)]
    assert CommentedRun("r", tests).status == (state, description)


def test_excused_test_is_shown_and_leaves_status_check_green():
    test = ran("t.py::test_x", Verdict.FAIL, excuse="ACKNOWLEDGED until 2999-12-31: known")
    run = CommentedRun("r", [test])
    assert run.status == ("success", "1 ACKNOWLEDGED")
    assert "| ⚠️ ACKNOWLEDGED | `test_x`<br><sub>until 2999-12-31: known</sub> |" in comment(run)


def test_proven_change_for_the_worse_makes_status_check_red_unless_excused():
    old, new = [ran()], [ran(measurement=measured(11))]
    assert CommentedRun("v2", new, base="v1", compared=compare_runs(old, new)).status == (
        "failure", "1 PASS; 1 worse than v1")
    new = [replace(new[0], excuse="QUARANTINED until 2999-12-31: noisy")]
    assert CommentedRun("v2", new, base="v1", compared=compare_runs(old, new)).status[0] == "success"


def test_marker_differs_between_hardware_kinds():
    kinds = [CommentedRun("r", [ran(measurement=measured(hardware=kind))]).marker for kind in ("h200", "emulated h200")]
    assert kinds == ["<!-- llmperf comment: h200 -->", "<!-- llmperf comment: emulated-h200 -->"]
    assert comment(CommentedRun("r", [ran()])).startswith(f"{kinds[0]}\n")


@pytest.mark.parametrize("base", [False, True])
def test_comment_stays_a_table_whatever_a_test_is_called(base):
    hostile = "t::x[a|b`c\n| <img src=x> @someone]"
    bad = replace(ran(hostile), error="<script> | @team [a](b) `x`\nmore", complete=False)
    facts = SessionFacts(origin=(("commit", "`</sub>"),))
    run = CommentedRun("<b>", [bad], facts, ("-m", "```"), base="<i>" if base else "",
                       compared=compare_runs([ran(hostile)], [bad]) if base else ())
    text = comment(run)
    assert not re.search(r"<script>|<b>|<i>|@team|<img", text.replace(re.search(r"```sh.*?```", text, re.S)[0], "")
                         .replace("`x[a\\|b'c \\| <img src=x> @someone]`", ""))
    assert {line.replace("\\|", "").count("|") for line in rows(text)} == {7}
    assert text.count("```") == 2


@pytest.mark.parametrize("base", [False, True])
def test_comment_fits_limit_of_services_and_names_omission(base):
    tests = [replace(ran(f"t::test_{number}_{'x' * 80}"), error="no " * 400, complete=False) for number in range(800)]
    compared = compare_runs([ran(test.test) for test in tests], tests) if base else ()
    text = comment(CommentedRun("new", tests, base="old" if base else "", compared=compared))
    assert len(text) <= 60_000
    assert "more tests: see the run" in text
