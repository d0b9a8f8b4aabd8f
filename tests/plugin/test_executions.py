"""A test that is executed again in one session: its runs pool, and a pass after a fail is never silently green."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_llmperf.plugin import identity

pytestmark = pytest.mark.emulated

# The emulator is as fast as the suite says: the first execution may be slower than those that follow.
SUITE = """
from pathlib import Path
import pytest
from pytest_llmperf import closed, random_tokens, vllm
from pytest_llmperf.errors import ServerDied

TRAFFIC = random_tokens(input=200, output=40, arrivals=closed(4), requests=24)
ENGINE = vllm("llama-3.1-8b", max_model_len=8192)

def execution():
    count = len(list(Path.cwd().glob("seen-*"))) + 1
    Path(f"seen-{count}").touch()
    return count

def test_it(perf):
    number = execution()
    run = perf.measure(ENGINE, TRAFFIC)
    BODY
"""
# One request in three takes longer than this.
FAILS_AT_FIRST = 'perf.check(run, "ttft_p50 <= 1ms" if number == 1 else "ttft_p50 <= 10s")'
# Logs the last execution only, as some plugins do.
SILENT_RETRY = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(report.failed for report in reports):
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""


@pytest.fixture
def execute(run, pytester):
    def execute(body, *args, suite=SUITE):
        result, junit = run(suite.replace("BODY", body), "--emulate", "h200", *args)
        files = [json.loads(path.read_text()) for path in Path(pytester.path).glob(".llmperf/runs/*/tests/*.json")]
        return result, junit, files

    return execute


def properties(junit, case=-1):
    return {node.get("name"): node.get("value") for node in list(junit.iter("testcase"))[case].iter("property")}


@pytest.mark.parametrize("args", [["--reruns=1"], ["--reruns=1", "-n", "2"]], ids=["plain", "xdist"])
def test_rerun_pools_runs_of_both_executions_and_is_reported(execute, args):
    result, junit, (run_file,) = execute(FAILS_AT_FIRST, *args)
    assert result.ret == 12
    result.stdout.fnmatch_lines(["*llmperf: not failed only after a failure*", "*::test_it: FAIL, then PASS"])
    property_by_name = properties(junit)
    assert property_by_name["llmperf.executions"] == "execution 1: FAIL, 3 of its 3 runs count; execution 2: PASS"
    assert property_by_name["llmperf.verdict"] == "PASS"
    names = [node.get("name") for node in list(junit.iter("testcase"))[-1].iter("property")]
    assert len(names) == len(set(names))  # nothing of the first execution is told twice
    (measurement,) = run_file["measurements"]
    assert [(run["execution"], run["seed"]) for run in measurement["runs"]] == [
        (1, 0), (1, 1), (1, 2), (2, 3), (2, 4), (2, 5),
    ]  # fmt: skip
    (earlier,) = run_file["earlier"]
    assert (earlier["ended"], earlier["measurements"]) == ("FAIL", [])
    assert earlier["checks"][0]["verdict"] == "FAIL"


def test_slo_is_judged_on_runs_of_all_executions(execute):
    """Six runs of 24 requests, of which the first three were measured before."""
    result, _, _ = execute('perf.check(run, "error_rate == 0"); assert number == 2', "--reruns=1", "-rA")
    assert result.ret == 12
    result.stdout.fnmatch_lines(["*error_rate*PASS*0 of 144*", "*execution 1: failed, 3 of its 3 runs count*"])


def test_an_execution_that_was_an_error_is_kept_and_not_pooled(execute):
    body = """
    if number == 1:
        raise ServerDied("gone")
    perf.check(run, "error_rate == 0")
"""
    result, junit, (run_file,) = execute(body, "--reruns=1")
    assert result.ret == 12
    assert "execution 1: ERROR, 0 of its 3 runs count" in properties(junit)["llmperf.executions"]
    assert [run["execution"] for run in run_file["measurements"][0]["runs"]] == [2, 2, 2]
    (earlier,) = run_file["earlier"]
    assert earlier["error"] == "gone"
    assert [run["seed"] for run in earlier["measurements"][0]["runs"]] == [0, 1, 2]


def test_other_conditions_are_not_pooled(execute):
    suite = SUITE.replace("measure(ENGINE", 'measure(vllm("llama-3.1-8b", max_num_seqs=8 * number)')
    result, junit, (run_file,) = execute(FAILS_AT_FIRST, "--reruns=1", suite=suite)
    assert result.ret == 12
    assert "0 of its 3 runs count" in properties(junit)["llmperf.executions"]
    assert len(run_file["measurements"][0]["runs"]) == len(run_file["earlier"][0]["measurements"][0]["runs"]) == 3


def test_hidden_first_execution_still_counts_as_fail(execute, pytester):
    pytester.makeconftest(SILENT_RETRY)
    result, junit, _ = execute(FAILS_AT_FIRST)
    assert result.ret == 12
    result.stdout.fnmatch_lines(["*::test_it: FAIL, then PASS"])
    assert "execution 1: FAIL" in properties(junit)["llmperf.executions"]


def test_rerun_fails_if_the_pooled_runs_still_fail(execute):
    """The second execution alone is given twice: pooled with the first it fails as before."""
    result, junit, (run_file,) = execute('perf.check(run, "ttft_p50 <= 1ms")', "--reruns=1")
    assert result.ret == 1
    assert len(run_file["measurements"][0]["runs"]) == 6
    assert "execution 2: FAIL" in properties(junit)["llmperf.executions"]


def test_copies_of_one_test_are_one_test(execute, pytester):
    """pytest-repeat gives each copy a separate id. The copies pool their runs in a common run file and baseline."""
    body = 'perf.check(run, "error_rate == 0"); perf.compare_with_baseline(run)'
    result, _, (run_file,) = execute(body, "--count=2", "--update-baselines")
    result.assert_outcomes(passed=2)
    assert run_file["test"].endswith("::test_it")
    assert len(run_file["measurements"][0]["runs"]) == 6
    path = Path(pytester.path, "baselines/emulated-h200/it/test_it.json")
    (session,) = json.loads(path.read_text())["measurements"][""]["sessions"]
    assert [seed for seed, _ in session["runs"]] == [0, 1, 2, 0, 1, 2]
    result, _, _ = execute(body, "--count=2", "--update-baselines", "--emulate-seed=1")
    result.stdout.no_fnmatch_line("*orphaned*")
    assert path.exists()


def test_rerun_of_test_without_measurement_keeps_exit_code(run):
    text = "SEEN = []\n\ndef test_it():\n    SEEN.append(1)\n    assert len(SEEN) == 2\n"
    result, _ = run(text, "--reruns=1")
    assert result.ret == 0


def test_runs_of_another_pytest_session_are_not_pooled(execute):
    execute(FAILS_AT_FIRST)
    result, junit, files = execute(FAILS_AT_FIRST)
    assert result.ret == 0
    assert "llmperf.executions" not in properties(junit)
    assert [len(file["measurements"][0]["runs"]) for file in files] == [3, 3]


def test_rerun_with_baseline_repeats_seeds_and_pools_runs(execute):
    stored = 'perf.compare_with_baseline(run)'
    for seed in "123":
        execute(stored, "--update-baselines-new" if seed == "1" else "--update-baselines", f"--emulate-seed={seed}")
    body = 'perf.compare_with_baseline(run); assert number != 4'
    result, _, files = execute(body, "--reruns=1", "--emulate-seed=4")
    assert result.ret == 12
    (run_file,) = [file for file in files if file["earlier"]]
    assert {run["seed"] for run in run_file["measurements"][0]["runs"]} == {0, 1, 2}
    assert len(run_file["measurements"][0]["runs"]) == 6
    assert "6 runs against 9 of 3 sessions" in run_file["checks"][-1]["n"]
    assert run_file["checks"][-1]["interval"].startswith("96.5 % CI")  # half of the error, spread over looks


@pytest.mark.parametrize("living", ["none", pytest.param("share", marks=pytest.mark.thorough)])
def test_a_claim_pools_pair_by_pair(execute, living):
    suite = SUITE.replace("    run = perf.measure(ENGINE, TRAFFIC)\n", "    ")
    body = """
    slow = ENGINE.with_flags(max_num_seqs=1)
    perf.claim(ENGINE, slow, TRAFFIC, "ttft_p50(b) / ttft_p50(a) >= 1.5", allow={"tpot_mean": 10.0})
    assert number == 2
"""
    result, _, (run_file,) = execute(body, "--reruns=1", f"--llmperf-set=resident_servers={living}", suite=suite)
    assert result.ret == 12
    a, b = run_file["measurements"]
    assert (a["side"], b["side"]) == ("a", "b")
    assert run_file["checks"][0]["n"].startswith("6 pairs")
    if living == "share":
        assert run_file["claims"][0]["order"] == {"1": "ABBAAB", "2": "ABBAAB"}
        return
    # B runs when the second execution begins, and a start is dear: it goes first there.
    assert [(run["execution"], run["block"], run["seed"]) for run in a["runs"]] == [
        (1, 1, 0), (1, 1, 1), (1, 1, 2), (2, 2, 3), (2, 2, 4), (2, 2, 5),
    ]  # fmt: skip
    assert [(run["execution"], run["block"]) for run in b["runs"]] == [(1, 2)] * 3 + [(2, 1)] * 3
    assert run_file["claims"] == [
        {"claim": "ttft_p50(b) / ttft_p50(a) >= 1.5", "a": 0, "b": 1, "order": {"1": "AB", "2": "BA"}}
    ]


SECOND_START_FAILS = """
from pytest_llmperf.engines.process.pool import EnginePool
from pytest_llmperf.errors import EngineError

acquire, asked = EnginePool.acquire, []

def acquire_once(self, *given, **options):
    asked.append(given)
    if len(asked) == 2:
        raise EngineError("it does not start", None)
    return acquire(self, *given, **options)

EnginePool.acquire = acquire_once
"""


def test_failed_server_restart_keeps_results_of_first_execution(execute, pytester):
    pytester.makeconftest(SECOND_START_FAILS)
    suite = SUITE.replace("def test_it(perf):", "@pytest.mark.engine(ENGINE)\ndef test_it(engine, perf):")
    suite = suite.replace("measure(ENGINE", "measure(engine")
    result, junit, files = execute(FAILS_AT_FIRST, "--reruns", "2", suite=suite)
    assert result.ret == 12
    assert properties(junit)["llmperf.executions"].count("FAIL") == 1
    (file,) = files
    assert len(file["measurements"][0]["runs"]) == 6  # those of the execution that was a FAIL, too


@pytest.mark.parametrize(("nodeid", "marked", "expected"), [
    ("t.py::test_x[h200-a]@gpu0", True, "t.py::test_x[h200-a]"), ("t.py::test_x@gpu0", True, "t.py::test_x"),
    ("t.py::test_x[a@b]", True, "t.py::test_x[a@b]"), ("a@b/t.py::test_x", True, "a@b/t.py::test_x"),
    ("t.py::test_x[a]@b", False, "t.py::test_x[a]@b"),
])
def test_the_group_that_xdist_appends_is_no_part_of_a_test(nodeid, marked, expected):
    """pytest 8 under --dist loadgroup: another id would be another baseline."""
    item = SimpleNamespace(nodeid=nodeid, get_closest_marker=lambda name: marked and name == "xdist_group")
    assert identity.test_id(item) == expected


@pytest.mark.parametrize(("parameters", "step", "expected"), [
    ("[1-2]", 0, ""), ("[2-2]", 1, ""), ("[1-1-2]", 0, "[1]"), ("[2-2-2]", 1, "[2]"), ("[1-2-1-2]", 0, "[1-2]"),
    ("[size-1-1-2]", 0, "[size-1]"), ("[10-1-2]", 0, "[10]"), ("[h200-11-12]", 10, "[h200]"), ("[1-2-a]", 0, "[a]"),
])
def test_the_copy_that_repeat_appends_is_no_part_of_a_test(parameters, step, expected):
    """A parameter may read as a copy does."""
    item = SimpleNamespace(nodeid=f"t.py::test_x{parameters}", get_closest_marker=lambda name: None,
                           callspec=SimpleNamespace(params={identity.STEP: step}))
    assert identity.test_id(item) == f"t.py::test_x{expected}"


def test_repeated_copies_have_test_id_of_original(run):
    text = """
import pytest

@pytest.mark.parametrize("size", ["1", "2", "1-1", "x-2", "1-2"])
def test_it(perf, size): give(perf, "PASS")
"""
    def ids(*args):
        _, junit = run(text, *args)
        return [node.get("value") for node in junit.iter("property") if node.get("name") == "llmperf.test"]

    assert sorted(ids("--count=2")) == sorted(2 * ids())
