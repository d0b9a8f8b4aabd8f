"""`--plant-flag`: plants a regression in each server, to check that a suite detects the regression."""

import json
from pathlib import Path

import pytest

SUITE = """
from pytest_llmperf import by_kind, closed, random_tokens, vllm

@by_kind(h200={})
def test_it(case, perf):
    engine = vllm("llama-3.1-8b", max_model_len=8192)
    run = perf.measure(engine, random_tokens(input=100, output=20, arrivals=closed(2), requests=12))
    perf.check(run, "eager == 0", "error_rate == 0")
    perf.compare_with_baseline(run)
"""

pytestmark = pytest.mark.emulated


@pytest.fixture
def emulate(run):
    return lambda *args: run(SUITE, "--emulate", "h200", *args)


def test_planted_flag_fails_mechanism_and_is_stored_in_conditions(emulate, pytester):
    result, _ = emulate("--plant-flag", "vllm:enforce-eager")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*emulated h200*planted: vllm:enforce_eager=true*", "*eager *FAIL*"])
    (run_file,) = Path(pytester.path, ".llmperf/runs").glob("*/tests/*.json")
    (measured,) = json.loads(run_file.read_text())["measurements"]
    assert measured["conditions"]["planted"] == "vllm:enforce_eager=true"
    assert json.loads(measured["conditions"]["flags"])["enforce_eager"] is True


@pytest.mark.parametrize("update", ["--update-baselines", "--update-baselines-new"])
def test_planted_flag_refuses_baseline_update(emulate, pytester, update):
    result, _ = emulate("--plant-flag", "vllm:enforce-eager", update)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--plant-flag plants a regression*never becomes a baseline*"])
    assert not Path(pytester.path, "baselines").exists()


def test_planted_flag_without_matching_server_is_reported(emulate):
    given = [word for flag in ("sglang:disable-radix-cache", "vllm:max-num-seqs=99") for word in ("--plant-flag", flag)]
    result, _ = emulate(*given)
    result.stdout.fnmatch_lines(["planted sglang:disable_radix_cache=true reached no server that was measured"])
    result.stdout.no_fnmatch_line("*planted vllm:max_num_seqs=99 reached*")


def test_planted_flag_makes_baseline_incomparable(emulate):
    assert emulate("--update-baselines-new")[0].ret == 0
    result, _ = emulate("--plant-flag", "vllm:max-num-seqs=999", "--llmperf-missing-baseline", "fail")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*INCOMPARABLE*", "*planted: absent stored, vllm:max_num_seqs=999 now*"])
    result.stdout.no_fnmatch_line("  pytest *")  # which would be refused


def test_malformed_planted_flag_is_refused_before_tests_run(emulate):
    result, _ = emulate("--plant-flag", "enforce-eager")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--plant-flag 'enforce-eager': write it as ENGINE:FLAG*"])


def test_flag_of_the_reference_reaches_the_reference_alone(emulate, pytester):
    result, _ = emulate("--reference=vllm=emulator", "--plant-flag=vllm:max-num-seqs=8",
                        "--plant-flag=vllm:reference:max-num-seqs=16")
    assert result.ret in {0, 1, 11}
    (run_file,) = Path(pytester.path, ".llmperf/runs").glob("*/tests/*.json")
    seats = {(each["conditions"].get("installation"), json.loads(each["conditions"]["flags"])["max_num_seqs"])
             for each in json.loads(run_file.read_text())["measurements"]}
    assert seats == {(None, 8), ("reference", 16)}
