"""One screen: verdicts with their numbers, and commands that can be copied."""

import re
from dataclasses import replace

import pytest

from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.report.end_summary import Invocation, counts, summary
from pytest_llmperf.results.causes.comparisons import MachineDrifts, SpreadTooLarge, StartsTooFew, Worse
from pytest_llmperf.results.causes.limits import (
    BeyondLimit,
    LimitInInterval,
    NoRequestServed,
    RunsInvalid,
    RunsMissLimit,
)
from pytest_llmperf.results.causes.runs import ServerRestarted
from pytest_llmperf.results.check import CheckResult, NoFurtherRuns, Problem, Stated
from pytest_llmperf.results.ended_test import EndedTest
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval

#: Sign of a number → unit, and how many of the number are 1.
UNITS = {"ms": (Unit.MS, 1), "s": (Unit.S, 1), "×": (Unit.RATIO, 1), "%": (Unit.SHARE, 100), "": (Unit.COUNT, 1)}


def check(text, reason="", **facts):
    """A check of "VERDICT: subject: number"."""
    verdict, subject, number = text.split(": ", 2)
    metric, cause = re.split(" [<>=]", subject)[0], Stated(reason) if reason else None
    value, sign = re.fullmatch(r"([-+.\d]*?) ?([^-+.\d]*)", number).groups()
    if value == "-":
        return CheckResult(subject, Verdict[verdict], metric, cause=cause, facts=facts)
    unit, scale = (Unit.CHANGE, 100) if value[0] in "+-" else UNITS[sign]
    estimate = float(value) / scale
    return CheckResult(subject, Verdict[verdict], metric, unit, estimate=estimate, cause=cause,
                       interval=Interval(0.9 * estimate, 1.1 * estimate, 0.95), facts=facts)


def ended(verdict, name="test_a", *checks, **fields):
    checks = checks or (f"{verdict}: ttft_p99 <= 60ms: 61.2 ms",)
    checks = tuple(check(each, "because") if isinstance(each, str) else each for each in checks)
    return EndedTest(f"suites/test_s.py::{name}", verdict, checks, run="R1", **fields)


def lines(*tests, width=80, every=False, **options):
    return summary(tests, Invocation(**options), width, every=every)


def test_summary_is_empty_without_performance_tests():
    assert lines() == []


def test_summary_shows_deciding_value_and_next_command(message):
    message(*lines(ended("FAIL")))


def test_deciding_check_of_failed_test_is_the_one_that_explains_the_others():
    """Failed requests make latencies worse, and a mechanism that does not work makes the ratio fail."""
    passed, errors = check("PASS: error_rate == 0: 0 %"), check("FAIL: error_rate == 0: 3 %")
    slow = check("FAIL: baseline tpot_mean: +9.0 %")
    ratio = check("FAIL: ttft_p50(b) / ttft_p50(a) >= 3: 0.99×")
    mechanism = replace(check("FAIL: prefix_cache_hit_rate(a) >= 80%: 0 %"), cause=RunsMissLimit(1, 3))
    checks = [passed, slow, ratio, mechanism, errors]
    shown_lines = []
    while len(checks) > 1:
        shown_lines.append(lines(ended("FAIL", "test_a", *checks), width=120)[0].removeprefix("FAIL  test_a  "))
        checks = [each for each in checks if f"{each.subject}" not in shown_lines[-1] or each is passed]
    assert shown_lines == ["3 %  error_rate == 0", "0 %  prefix_cache_hit_rate(a) >= 80%",
                    "0.99×  ttft_p50(b) / ttft_p50(a) >= 3", "+9.0 %  baseline tpot_mean"]
    assert lines(ended("PASS", "test_a", passed, slow))[0] == "PASS  test_a  0 %  error_rate == 0"


def test_summary_names_unserved_requests_before_failed_ratio():
    ratio = check("FAIL: ttft_p50(b) / ttft_p50(a) >= 3: 0.99×")
    unserved = CheckResult("goodput >= 5", Verdict.FAIL, "goodput", cause=NoRequestServed(1, 3))
    assert lines(ended("FAIL", "test_a", ratio, unserved))[0] == "FAIL  test_a  goodput >= 5"


def test_failed_slo_of_one_side_is_named_after_the_ratio(message):
    """A latency of one side is no mechanism: the ratio is what the claim is about."""
    slow_side = replace(check("FAIL: ttft_p99(a) <= 60ms: 61.2 ms"), cause=BeyondLimit())
    ratio = check("FAIL: ttft_p50(b) / ttft_p50(a) >= 3: 0.99×")
    message(lines(ended("FAIL", "test_a", slow_side, ratio))[0])


def test_failed_comparison_is_named_before_a_failed_slo(message):
    slo, compared = check("FAIL: ttft_p99 <= 60ms: 61.2 ms"), check("FAIL: baseline tpot_mean: +9.0 %")
    message(lines(ended("FAIL", "test_a", slo, compared))[0])


def test_failed_comparison_shows_both_values_change_and_margins(message):
    failed = CheckResult("baseline tpot_mean", Verdict.FAIL, "tpot_mean", Unit.CHANGE, Comparison.AT_MOST, 0.05, 0.129,
                         before=12.97, after=14.64, cause=Worse(0.02), facts={"negligible": 0.02})
    message(lines(ended("FAIL", "test_a", failed), width=120)[0])


def test_summary_shows_first_problem_of_invalid_runs(message):
    problem = Problem(ServerRestarted("its counters fell"), run=2, seed=1)
    invalid = CheckResult("valid runs", Verdict.ERROR, "validity", cause=RunsInvalid(), problems=(problem,))
    message(lines(ended("ERROR", "test_a", invalid), width=120)[0])


HURRIED = check("INCONCLUSIVE: baseline ttft_p50: +4.0 %", "too few runs", no_further_runs=NoFurtherRuns.OUT_OF_TIME)
DRIFTING = CheckResult("ttft_p50(b) / ttft_p50(a) >= 3", Verdict.INCONCLUSIVE, "ttft_p50(b) / ttft_p50(a)",
                       cause=MachineDrifts(0.2))
NO_RESET = check("INCONCLUSIVE: baseline ttft_p50: +4.0 %", "too few runs",
                 no_further_runs=NoFurtherRuns.CACHE_NOT_RESET)


@pytest.mark.parametrize(("open_check", "limit_s", "step"), [
    (HURRIED, 300, "pytest suites/test_s.py::test_a --llmperf-extension-limit=600"),
    (HURRIED, 0, "pytest suites/test_s.py::test_a --llmperf-extension-limit=60"),
    (DRIFTING, 300, "pytest suites/test_s.py::test_a --llmperf-extension-limit=600"),
    (NO_RESET, 300, "llmperf show R1 test_a"),
])
def test_undecided_test_gets_more_time_only_where_time_ran_out(open_check, limit_s, step):
    """The same command again would measure as much as before."""
    shown = lines(ended("INCONCLUSIVE", "test_a", open_check), extension_limit_s=limit_s)
    assert shown[shown.index("next:") + 1:] == [f"  {step}"]


def test_one_step_for_each_reason_why_tests_are_undecided(message):
    shown = lines(ended("INCONCLUSIVE", "test_a", HURRIED), ended("INCONCLUSIVE", "test_b"), extension_limit_s=300)
    message(*shown[shown.index("next:") + 1:])


def test_more_time_is_not_advised_for_a_check_that_is_decided():
    decided = replace(HURRIED, verdict=Verdict.PASS)
    undecided = check("INCONCLUSIVE: ttft_p99 <= 60ms: 61.2 ms", "too few requests")
    shown = lines(ended("INCONCLUSIVE", "test_a", decided, undecided), extension_limit_s=300)
    assert shown[-1] == "  llmperf show R1 test_a"


def test_summary_lists_worst_verdict_first():
    shown = lines(ended("PASS", "test_p"), ended("ERROR", "test_e"), ended("FAIL", "test_f"))
    assert [line.split()[0] for line in shown[:3]] == ["ERROR", "FAIL", "PASS"]


def test_an_error_names_the_log(message):
    error = "The vllm server died: signal 9.\ncommand: vllm serve\nlog: /runs/R1/server log\n  | words"
    shown = lines(ended("ERROR", "test_a", "PASS: error_rate == 0: 0 %", error=error))
    message(*shown)


def test_next_commands_cover_all_undecided_tests(message):
    tests = [ended("NO_BASELINE", name, "NO_BASELINE: baseline: -") for name in ("test_a", "test_b[h200]")]
    open_ones = [ended("IMPROVED", "test_i"), ended("INCONCLUSIVE", "test_o"), ended("INCOMPARABLE", "test_c")]
    shown = lines(*tests, replace(tests[0], run="R2"), *open_ones, options=("--emulate", "h200"))
    message(*sorted(shown[shown.index("next:") + 1:]))


def test_many_tests_of_a_file_are_named_by_the_file(message):
    shown = lines(*(ended("IMPROVED", f"test_{i}") for i in range(5)))
    message(shown[-1])


def test_without_run_folder_is_measured_again_as_next_step(message):
    shown = lines(replace(ended("NO_BASELINE", "test_a"), run=""))
    message(shown[-1])


def test_summary_names_each_build_change_of_baselines_once(message):
    def upgraded(now):
        return check("PASS: baseline tpot_mean: +0.4 %", engine="vllm", compared_sessions=1, changed_sessions=1,
                     build_changes={"engine.version": ["0.26.0", now]})

    shown = lines(ended("PASS", "test_a", upgraded("0.32.0")), ended("PASS", "test_b", upgraded("0.32.0")),
                  ended("PASS", "test_c"), *(ended("PASS", f"test_{n}", upgraded(n)) for n in ("1", "2", "3")))
    message(*(line for line in shown if "across" in line))
    assert not any("across" in line for line in lines(ended("PASS")))


def test_summary_of_ten_tests_fits_one_screen():
    kinds = ("FAIL", "FAIL", "FAIL", "FAIL", "ERROR", "NO_BASELINE", "INCONCLUSIVE", "INCOMPARABLE", "IMPROVED", "PASS")
    error = "It did not start.\nlog: /x"
    tests = [ended(kind, f"test_{i}_with_a_name_that_is_as_long_as_names_are[h200-case{i}]",
                   error=error if kind == "ERROR" else "") for i, kind in enumerate(kinds)]
    shown = lines(*tests)
    assert len(shown) <= 24 - 3  # our title, pytest's last line, the prompt
    verdicts = shown[: shown.index("next:")]
    assert len(verdicts) == 11
    assert all(len(line) <= 80 for line in verdicts)
    assert verdicts.pop() == "decided: 9 of 10 tests (90 %)"
    assert all("61.2 ms" in line for line in verdicts if "ERROR" not in line)


SPREAD = SpreadTooLarge(6, 0.02, 0.03)
OPEN = {
    "sessions": ("baseline itl_p50", SPREAD, {"stored_sessions": 3}),
    "gross": ("baseline itl_p50", SPREAD, {"stored_sessions": 6, "deciding_sessions": 9}),
    "margin": ("baseline itl_p50", SPREAD, {"stored_sessions": 6}),
    "runs": ("baseline itl_p50", SPREAD, {"stored_sessions": 6, "no_further_runs": NoFurtherRuns.OUT_OF_TIME.value}),
    "requests": ("ttft_p50 <= 60ms", LimitInInterval(), {}),
    "starts": ("ttft_p50(b) / ttft_p50(a) >= 2", StartsTooFew(4), {}),
    "else": ("ttft_p50 <= 60ms", Stated("because"), {}),
}


def undecided(*kinds):
    """A test with an open check of each kind."""
    checks = [replace(check(f"INCONCLUSIVE: {subject}: 61.2 ms"), cause=cause, facts=facts)
              for subject, cause, facts in map(OPEN.get, kinds)]
    return ended("INCONCLUSIVE", "test_a", *checks)


@pytest.mark.parametrize(("tests", "step"), [
    (["sessions", "gross", "margin"], "more stored sessions (--update-baselines) can decide 2"),
    (["margin", "margin", "starts"], "wider margins (margins=) can decide 2"),
    (["runs", "requests", "sessions"], "more runs (--llmperf-extension-limit, runs=) can decide 2"),
    (["starts", "starts", "runs"], "more server starts (starts=) can decide 2"),
    (["runs", "sessions"], "more runs (--llmperf-extension-limit, runs=) can decide 1"),
    (["else"], ""),
])
def test_summary_names_step_that_decides_most_tests_for_least_gpu_time(tests, step):
    line = next(line for line in lines(*map(undecided, tests), width=160) if line.startswith("decided"))
    assert line.partition("; ")[2] == step


def test_test_with_checks_that_need_different_steps_counts_for_none():
    line = next(line for line in lines(undecided("runs", "starts"), width=160) if line.startswith("decided"))
    assert line == "decided: 0 of 1 tests (0 %)"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_inconclusive_keeps_its_remedy_on_narrow_terminals(width):
    reason = "the 95 % interval (11.2 … 14.9 ms) contains the limit, so the test cannot decide; measure more runs"
    result = replace(check("INCONCLUSIVE: ttft_p99 <= 60ms: 61.2 ms"), cause=Stated(reason))
    shown = lines(ended("INCONCLUSIVE", "test_with_a_name_that_is_as_long_as_names_are", result), width=width)
    verdict = shown[: next(i for i, line in enumerate(shown) if line.startswith("decided"))]
    assert all(len(line) <= width for line in verdict)
    assert " ".join(" ".join(verdict).split()).endswith("measure more runs")


def test_many_passes_are_folded():
    tests = [ended("PASS", f"test_{i}") for i in range(40)] + [ended("FAIL", "test_f")]
    shown = lines(*tests)
    assert shown[:2] == ["FAIL  test_f  61.2 ms  ttft_p99 <= 60ms", "…     and 40 PASS; each of them with -v"]
    assert len(lines(*tests, every=True)) == 41 + 2


def test_many_failures_are_folded_too():
    shown = lines(*(ended("FAIL", f"test_{i}") for i in range(40)))
    assert len(shown) == 9 + 1 + 1 + 4
    assert shown[9] == "…     and 31 FAIL; each of them with -v"
    assert shown[-1] == "  … and 37 more like this"


def test_counts_name_each_verdict():
    assert counts([ended("FAIL"), ended("PASS"), ended("PASS")]) == "1 FAIL, 2 PASS"


@pytest.mark.parametrize(
    ("verdict", "text", "reason", "expected"),
    [
        ("INCONCLUSIVE", "baseline ttft_p50: +4.0 %", "runs differ by 8 %; store more sessions",
         "+4.0 %  baseline ttft_p50: runs differ by 8 %; store more sessions"),
        ("INCOMPARABLE", "baseline: -", "driver: 5 stored, 6 now. Measure …", "baseline: driver: 5 stored, 6 now"),
        ("FAIL", "ttft_p99 <= 60ms: 61 ms", "2 % are over the limit; more", "61 ms  ttft_p99 <= 60ms"),
    ],
)
def test_summary_line_shows_cause_of_verdict(verdict, text, reason, expected):
    shown = lines(ended(verdict, "test_a", "PASS: x: 1", check(f"{verdict}: {text}", reason)), width=120)
    assert shown[0] == f"{verdict}  test_a  {expected}"


def test_stored_baselines_add_git_command_to_summary():
    tests = [ended("NO_BASELINE", name, stored="../baselines") for name in ("test_a", "test_b")]
    shown = lines(*tests, ended("PASS", "test_p", stored="../baselines"), ended("NO_BASELINE", "test_refused"))
    assert shown[shown.index("next:"):] == [
        "next:", "  llmperf baselines take R1 --new", "  git add ../baselines",
    ]


@pytest.mark.parametrize("verdict", ["NO_BASELINE", "INCOMPARABLE"])
def test_baseline_stored_by_the_session_is_not_reported_as_missing(verdict, message):
    tests = [ended(verdict, "test_a", f"{verdict}: baseline: -", stored="baselines"), ended("PASS", "test_p")]
    assert counts(tests) == "1 STORED, 1 PASS"
    message(lines(*tests)[0])
    assert counts([ended(verdict, "test_a"), ended("IMPROVED", "test_i", stored="baselines")]) == (
        f"1 {verdict}, 1 IMPROVED")


BESIDE = ("NO_BASELINE: baseline: -", "INCONCLUSIVE: ttft_p99 <= 1s: 1.01 s")
ACCEPT = 'pytest suites/test_s.py::test_a --update-baselines --llmperf-accept "REASON"'


def test_open_slo_is_shown_beside_missing_baseline(message):
    shown = lines(ended("NO_BASELINE", "test_a", BESIDE[0], check(BESIDE[1], "too few requests; more")),
                  ended("NO_BASELINE", "test_b", BESIDE[0], "INCONCLUSIVE: baseline ttft_p50: +4.0 %"))
    message(*shown)


@pytest.mark.parametrize(
    ("updated", "verdict", "step"),
    [
        ({"NO_BASELINE"}, "NO_BASELINE", "llmperf show R1 test_a"),
        ({"NO_BASELINE"}, "IMPROVED", "pytest suites/test_s.py::test_a --update-baselines"),
        ({"NO_BASELINE", "IMPROVED"}, "IMPROVED", "llmperf show R1 test_a"),
        ({"NO_BASELINE", "IMPROVED"}, "INCOMPARABLE", ACCEPT),
        ({"NO_BASELINE", "IMPROVED", "INCOMPARABLE"}, "INCOMPARABLE", "llmperf show R1 test_a"),
    ],
)
def test_summary_does_not_repeat_update_that_stored_no_session(updated, verdict, step):
    assert lines(ended(verdict), updated=frozenset(updated))[-1] == f"  {step}"


def test_undecided_test_in_virtual_time_advises_show_instead_of_repetition():
    shown = lines(ended("INCONCLUSIVE", "test_a", HURRIED), virtual=True, extension_limit_s=300)
    assert shown[-1] == "  llmperf show R1 test_a"


@pytest.mark.parametrize("width", [26, 36, 40, 80])
def test_what_would_decide_is_not_cut(width):
    open_check = replace(check("INCONCLUSIVE: baseline itl_p50: -1.2 %"), facts={"deciding_sessions": 4})
    shown = " ".join(line.strip() for line in lines(ended("INCONCLUSIVE", "test_a", open_check), width=width))
    assert "decided: 0 of 1 tests (0 %); more stored sessions (--update-baselines) can decide 1" in shown


def test_planted_fault_prevents_baseline_advice():
    kinds = ("FAIL", "NO_BASELINE", "INCOMPARABLE", "INCONCLUSIVE", "IMPROVED")
    shown = lines(*map(ended, kinds), planted=True)
    assert shown[shown.index("next:"):] == ["next:", "  llmperf show R1 test_a"]


@pytest.mark.parametrize("width", [1, 12, 20])
def test_a_terminal_that_is_too_narrow_is_no_reason_to_fail(width):
    assert lines(ended("INCONCLUSIVE"), ended("PASS", "test_b"), width=width)
