"""Profiler traces that go wrong: the verdict stays, the report states the reason, and no part of a file stays."""

import json
import shutil
import sys

import pytest

MEASURES = """
@pytest.mark.engine(stub({mode!r}, STUB_ITL_S="0.01"))
def test_x(engine, perf):
    perf.check(perf.measure(engine, FEW, runs=1), {slo!r})
"""
GOOD, BAD = "error_rate == 0", "slo_attainment(ttft <= 0.001ms) >= 90%"


def profiles(suite):
    return suite.run_files()["test_x"]["profiles"]


def kept_files(suite):
    return [path for folder in suite.folder.glob(".llmperf/runs/*/profiles") for path in folder.iterdir()]


def servers_with_profiler(suite):
    commands = [path.read_text() for path in sorted(suite.folder.glob(".llmperf/runs/*/servers/*/command.txt"))]
    return ["--profiler-config" in command for command in commands]


@pytest.mark.parametrize(
    ("option", "slo", "traces"),
    [pytest.param("--llmperf-profile=always", GOOD, 1, marks=pytest.mark.thorough),
     ("--llmperf-profile=on-fail", GOOD, 0),
     ("--llmperf-profile=on-fail", BAD, 1), pytest.param("-q", BAD, 0, marks=pytest.mark.thorough)],
)
def test_option_and_verdict_decide_whether_a_trace_is_made(suite, option, slo, traces):
    result, _ = suite.run(MEASURES.format(mode="", slo=slo), option)
    result.assert_outcomes(**{"passed" if slo == GOOD else "failed": 1})
    without_nsys = option != "-q" and shutil.which("nsys") is None
    assert ("no capture of Nsight Systems: nsys is not on PATH" in result.stdout.str()) == without_nsys
    assert [profile["problem"] for profile in profiles(suite)] == [""] * traces
    assert len(kept_files(suite)) == traces
    assert servers_with_profiler(suite) == [False] + [True] * traces
    if traces:
        (rank,) = profiles(suite)[0]["ranks"]
        parts = {name: rank[f"{name}_us"] for name in ("window", "attention", "matrix", "communication", "other")}
        assert parts == {"window": 40, "attention": 10, "matrix": 10, "communication": 10, "other": 0}
        assert (rank["all_reduces"], rank["all_reduce_us"]) == (1, 10)
        shown = suite.pytester.run(sys.executable, "-m", "pytest_llmperf", "show", "test_x")
        shown.stdout.fnmatch_lines(["*profile of vllm('tiny'*: profiles/*; attention 25 %, matrix products 25 %, *"])
    suite.nothing_left()


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("without-profiler", "The profiler of vllm does not start: /start_profile answered 404"),
        pytest.param("writes-no-trace", "wrote no trace", marks=pytest.mark.thorough),
        pytest.param("cuts-off-the-trace", "cannot be read", marks=pytest.mark.thorough),
        ("dies-of-the-trace", "died: signal 9 (SIGKILL)"),
    ],
)
def test_trace_that_fails_leaves_verdict_and_no_file(suite, mode, problem):
    result, _ = suite.run(MEASURES.format(mode=mode, slo=GOOD), "--llmperf-profile=always")
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    (profile,) = profiles(suite)
    assert problem in profile["problem"]
    assert profile["files"] == profile["ranks"] == []
    assert kept_files(suite) == []
    (report,) = suite.folder.glob(".llmperf/runs/*/report.html")
    assert "Where the traced time went" in report.read_text()
    suite.nothing_left()


def test_trace_above_limit_is_dropped_and_breakdown_stays(suite):
    suite.settings(profile_limit_mib=0.00001)
    suite.run(MEASURES.format(mode="", slo=GOOD), "--llmperf-profile=always")
    (profile,) = profiles(suite)
    assert profile["problem"] == "the trace was dropped: it has 0.0 MiB, and profile_limit_mib is 1e-05"
    assert (profile["files"], profile["ranks"][0]["matrix_us"]) == ([], 10)
    assert kept_files(suite) == []


def test_next_test_is_measured_on_a_server_without_profiler(suite):
    second = MEASURES.format(mode="", slo=GOOD).replace("test_x", "test_y")
    result, _ = suite.run(MEASURES.format(mode="", slo=BAD) + second, "--llmperf-profile=on-fail")
    result.assert_outcomes(passed=1, failed=1)
    assert servers_with_profiler(suite) == [False, True, False]
    assert {run["start_id"] for run in suite.run_files()["test_x"]["measurements"][0]["runs"]} == {1}


def test_folder_of_a_killed_trace_is_removed_by_the_next_run(suite):
    left = suite.folder / ".llmperf" / "runs" / "20260101T000000Z-aaaaaa" / "profiles" / ".trace-abc"
    left.mkdir(parents=True)
    (left / "rank0.pt.trace.json.gz").write_bytes(b"half")
    suite.run(MEASURES.format(mode="", slo=GOOD))
    assert not left.exists()


def test_measurement_that_the_test_has_traced_is_traced_once(suite):
    suite.run("""
@pytest.mark.engine(stub("", STUB_ITL_S="0.01"))
def test_x(engine, perf):
    run = perf.measure(engine, FEW, runs=1)
    perf.check(run, "error_rate == 0")
    assert perf.profile(run).ranks[0].all_reduces == 1
""", "--llmperf-profile=always")
    assert len(profiles(suite)) == 1
    assert len(kept_files(suite)) == 1


def test_perf_profile_of_a_server_without_profiler_is_an_error(suite):
    result, _ = suite.run("""
@pytest.mark.engine(stub("without-profiler", STUB_ITL_S="0.01"))
def test_x(engine, perf):
    perf.profile(perf.measure(engine, FEW, runs=1))
""")
    assert result.ret == 10
    result.stdout.fnmatch_lines(["*The profiler of vllm does not start: /start_profile answered 404*"])


@pytest.mark.parametrize("option", ["--llmperf-profile=always", "--llmperf-profile=on-fail"])
def test_trace_of_an_emulated_server_is_refused_before_a_test(suite, option):
    result, _ = suite.run(MEASURES.format(mode="", slo=GOOD), option, "--emulate", "h200")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--llmperf-profile traces the kernels of a server, and an emulated server has none*"])
    assert not list(suite.folder.glob(".llmperf/runs/*"))


@pytest.mark.thorough
def test_run_file_that_names_a_broken_profile_is_refused(suite):
    suite.run(MEASURES.format(mode="", slo=GOOD), "--llmperf-profile=always")
    (path,) = suite.folder.glob(".llmperf/runs/*/tests/*.json")
    content = json.loads(path.read_text())
    content["profiles"][0]["ranks"][0]["window_us"] = None
    path.write_text(json.dumps(content))
    result = suite.pytester.run(sys.executable, "-m", "pytest_llmperf", "report", str(path.parents[1]))
    assert result.ret == 2
    result.stderr.fnmatch_lines(["*profiles*a time is missing*"])


@pytest.mark.thorough
def test_both_sides_of_a_claim_are_traced(suite):
    suite.run("""
def test_x(perf):
    perf.claim(stub("", STUB_ITL_S="0.01"), stub("", STUB_ITL_S="0.02"), FEW, "itl_p50(b) / itl_p50(a) >= 1.2")
""", "--llmperf-profile=always", "--llmperf-extension-limit", "0")
    assert [(profile["measurement"], profile["problem"]) for profile in profiles(suite)] == [(1, ""), (2, "")]
    assert [rank["device"] for profile in profiles(suite) for rank in profile["ranks"]] == ["gpu", "gpu"]
    assert {path.name.split(".")[-5] for path in kept_files(suite)} == {"1", "2"}


@pytest.mark.thorough
def test_search_has_one_trace_for_all_rates(suite):
    suite.run("""
from pytest_llmperf import constant

def test_x(perf):
    load = random_tokens(input=8, output=20, arrivals=constant(8), requests=12)
    perf.check(perf.max_rate(stub("", STUB_ITL_S="0.01"), load, slo="error_rate == 0", precision=0.5, cooldown_s=0.1),
               "max_rate >= 1/s")
""", "--llmperf-profile=always")
    run_file = suite.run_files()["test_x"]
    assert len(run_file["measurements"]) > 2
    assert len(run_file["profiles"]) == 1


def test_perf_profile_of_emulated_server_ends_with_usage_error(suite):
    result, _ = suite.run("""
def test_x(perf):
    perf.profile(perf.measure(vllm("llama-3.1-8b"), FEW, runs=1))
""", "--emulate", "h200")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*llmperf USAGE: perf.profile(run): an emulated server has no kernels to trace*"])
