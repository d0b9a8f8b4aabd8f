"""Profiler traces of real engines: after the verdict, on a server of its own, with a breakdown and a link."""

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]

TESTS = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

E = vllm("tiny", max_model_len=4096)
pytestmark = [pytest.mark.cpu, pytest.mark.engine(E)]
LOAD = random_tokens(input=100, output=100, arrivals=closed(2), requests=6)


def test_passes(engine, perf):
    perf.check(perf.measure(engine, LOAD, runs=1), "error_rate == 0")


def test_fails(engine, perf):
    perf.check(perf.measure(engine, LOAD, runs=1), "slo_attainment(ttft <= 0.001ms) >= 90%")
"""


def the_run():
    (run,) = Path(".llmperf/runs").iterdir()
    return run


def the_test(run, name):
    (path,) = run.glob(f"tests/*{name}-*.json")
    return json.loads(path.read_text())


@pytest.mark.thorough
def test_failed_test_has_trace_of_unmeasured_server(run_real):
    result, tags = run_real(TESTS, "--llmperf-profile=on-fail")
    assert tags == {"test_passes": set(), "test_fails": {"failure"}}
    run = the_run()
    assert the_test(run, "test_passes")["profiles"] == []
    failed = the_test(run, "test_fails")
    (profile,) = failed["profiles"]
    assert (profile["measurement"], profile["problem"]) == (1, "")
    (rank,) = profile["ranks"]
    assert rank["device"] == "cpu"
    assert min(rank["attention_us"], rank["matrix_us"], rank["other_us"]) > 0
    assert rank["communication_us"] == rank["all_reduces"] == 0
    assert sum(rank[f"{part}_us"] for part in ("attention", "matrix", "other")) < rank["window_us"]

    (file,) = profile["files"]
    with gzip.open(run / file) as trace:
        steps = {event["ts"] for event in json.load(trace)["traceEvents"]
                 if event.get("cat") == "user_annotation" and event["name"].startswith("execute_")}
    assert 60 <= len(steps) <= 66
    page = (run / "report.html").read_text()
    assert f'href="{file}"' in page

    commands = [path.read_text() for path in sorted(run.glob("servers/*/command.txt"))]
    assert ["profiler" in command for command in commands] == [False, True]
    assert {run["start_id"] for run in failed["measurements"][0]["runs"]} == {1}
    assert [path.name for path in (run / "profiles").iterdir()] == [Path(file).name]
    result.stdout.fnmatch_lines(["*profile of vllm('tiny', max_model_len=4096): profiles/*attention * %*"])


SGLANG = """
import pytest
from pytest_llmperf import closed, random_tokens, sglang

pytestmark = [pytest.mark.cpu]
E = sglang("tiny", context_length=4096)


def test_passes(perf):
    run = perf.measure(E, random_tokens(input=100, output=100, arrivals=closed(2), requests=6), runs=1)
    perf.check(run, "error_rate == 0", "tensor_parallel == 1")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["sglang"])
def test_trace_of_sglang_has_shares_of_operators(run_real, which):
    result, tags = run_real(SGLANG, "--llmperf-profile=always")
    assert tags == {"test_passes": set()}, which
    (profile,) = the_test(the_run(), "test_passes")["profiles"]
    assert profile["problem"] == ""
    (rank,) = profile["ranks"]
    assert rank["device"] == "cpu"
    assert min(rank["matrix_us"], rank["other_us"]) > 0
    assert (the_run() / profile["files"][0]).is_file()
    assert result.ret == 0


@pytest.mark.thorough
def test_trace_above_size_limit_is_dropped_with_breakdown_kept(run_real, pytester):
    pytester.makepyprojecttoml("[tool.llmperf]\nprofile_limit_mib = 0.01\n")
    run_real(TESTS, "--llmperf-profile=on-fail", "-k", "test_fails")
    run = the_run()
    (profile,) = the_test(run, "test_fails")["profiles"]
    assert re.fullmatch(r"the trace was dropped: it has [\d.]+ MiB, and profile_limit_mib is 0.01", profile["problem"])
    assert profile["files"] == []
    assert profile["ranks"][0]["matrix_us"] > 0
    assert not (run / "profiles").exists()
    assert "the trace was dropped" in (run / "report.html").read_text()


@pytest.mark.thorough
def test_capture_of_nsys_is_kept_from_unmeasured_server(run_real, nsys_calls):
    run_real(TESTS, "--llmperf-profile=on-fail", "-k", "test_fails")
    run = the_run()
    (profile,) = the_test(run, "test_fails")["profiles"]
    assert profile["problem"] == ""
    assert (run / profile["nsys"]).read_bytes() == b"capture"
    assert f'href="{profile["nsys"]}"' in (run / "report.html").read_text()
    calls = nsys_calls()
    assert [call.split()[0] for call in calls] == ["launch", "start", "stop"]
    (session,) = {word for call in calls for word in call.replace("-new", "").split() if word.startswith("--session=")}
    assert session.startswith("--session=llmperf-")
    commands = [path.read_text() for path in sorted(run.glob("servers/*/command.txt"))]
    assert ["--session-new=" in command for command in commands] == [False, False, True]


SUITE = (ROOT / "suites" / "test_tensor_parallel.py").read_text()


@pytest.mark.thorough
def test_two_ranks_resolve_size_and_exchange_parts(run_real):
    _, tags = run_real(SUITE, "-k", "test_two_ranks")
    assert tags == {"test_two_ranks_serve[cpu]": set(), "test_two_ranks_exchange_their_parts[cpu]": set()}
    run = the_run()
    (profile,) = the_test(run, "test_two_ranks_exchange_their_parts-cpu")["profiles"]
    assert [rank["all_reduce_name"] for rank in profile["ranks"]] == ["_C::shm_allreduce"] * 2
    assert len(profile["files"]) == 2


@pytest.mark.thorough
def test_server_that_drops_tensor_parallelism_fails_by_resolved_size(run_real):
    result, tags = run_real(SUITE, "-k", "test_two_ranks_serve", "--plant-flag", "vllm:tensor_parallel_size=1")
    assert tags == {"test_two_ranks_serve[cpu]": {"failure"}}
    result.stdout.fnmatch_lines(["*tensor_parallel * 2 * 1 * FAIL*"])


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("nsys") is None, reason="needs Nsight Systems on PATH")
def test_installed_nsys_writes_report_of_real_server(run_real):
    run_real(TESTS, "--llmperf-profile=on-fail", "-k", "test_fails")
    run = the_run()
    (profile,) = the_test(run, "test_fails")["profiles"]
    assert profile["problem"] == ""
    assert (run / profile["nsys"]).stat().st_size > 100_000
    (command,) = [text for path in run.glob("servers/*/command.txt") if "--session-new=" in (text := path.read_text())]
    assert command.split()[1] == "launch"
