"""`--reference`: a comparison is made against another build in the same session, in turn."""

import json
from pathlib import Path

import pytest

SUITE = """
from pytest_llmperf import by_kind, poisson, random_tokens, vllm

@by_kind(h200={})
def test_it(case, perf):
    engine = vllm("llama-3.1-8b", max_model_len=8192)
    run = perf.measure(engine, random_tokens(input=500, output=60, arrivals=poisson(10), requests=60))
    perf.check(run, "error_rate == 0")
    perf.compare_with_baseline(run, primaries=["itl_p50"])
"""
FIXTURE = """
import pytest
from pytest_llmperf import poisson, random_tokens, vllm

@pytest.mark.h200
@pytest.mark.engine(vllm("llama-3.1-8b", max_model_len=8192))
def test_it(engine, perf):
    run = perf.measure(engine, random_tokens(input=500, output=60, arrivals=poisson(10), requests=60))
    perf.compare_with_baseline(run, primaries=["itl_p50"])
"""
CLAIM = """
from pytest_llmperf import by_kind, poisson, random_tokens, vllm

@by_kind(h200={})
def test_it(case, perf):
    engine = vllm("llama-3.1-8b", max_model_len=8192)
    load = random_tokens(input=500, output=60, arrivals=poisson(10), requests=60)
    claim = perf.claim(engine, engine.with_flags(enforce_eager=True), load, "tpot_mean(b) / tpot_mean(a) >= 1.05")
    perf.compare_with_baseline(claim.a, primaries=["itl_p50"])
"""

pytestmark = pytest.mark.emulated


@pytest.fixture
def emulate(run, pytester):
    """Run under emulation with the emulator as reference; gives the result and the run file."""

    def emulate(text=SUITE, *args):
        result, _ = run(text, "--emulate", "h200", "--reference", "vllm=emulator", *args)
        run_file = sorted(Path(pytester.path, ".llmperf/runs").glob("*/tests/*.json"))
        return result, json.loads(run_file[-1].read_text()) if run_file else None

    return emulate


def reference_result(run_file):
    (check,) = [check for check in run_file["checks"] if check["subject"].startswith("reference ")]
    return check


def test_build_with_slower_steps_fails_against_reference_without_a_stored_baseline(emulate):
    result, run_file = emulate(SUITE, "--emulate-fault", "step_time=+3%", "--llmperf-missing-baseline", "fail")
    assert result.ret == 1
    check = reference_result(run_file)
    assert (check["verdict"], check["cause"]) == ("FAIL", "worse_than_reference")
    assert 0.02 < check["estimate"] < 0.04
    result.stdout.fnmatch_lines(["*FAIL*reference itl_p50*"])


def test_equal_builds_pass_and_runs_alternate_on_equal_seeds(emulate):
    result, run_file = emulate()
    assert result.ret == 0
    assert reference_result(run_file)["verdict"] == "PASS"
    by_installation = {
        measured["conditions"].get("installation", "candidate"): measured["runs"]
        for measured in run_file["measurements"][1:]
    }
    assert set(by_installation) == {"candidate", "reference"}
    candidate, reference = by_installation["candidate"], by_installation["reference"]
    assert [run["seed"] for run in candidate] == [run["seed"] for run in reference]
    order = sorted([(run["block"], "c") for run in candidate] + [(run["block"], "r") for run in reference])
    assert "".join(side for _, side in order).startswith("crrccr")
    assert len({run["start_id"] for run in candidate[:8]}) == 1


def test_idle_sibling_is_a_condition_of_both_sides(emulate):
    _, run_file = emulate()
    assert {measured["conditions"]["treatment"] for measured in run_file["measurements"]} == {
        "1 idle server beside it"}


@pytest.mark.parametrize("suite", [SUITE, FIXTURE], ids=["spec", "fixture"])
def test_sleeping_sibling_is_a_condition_and_each_build_starts_once(emulate, suite):
    result, run_file = emulate(suite, "--llmperf-set", "resident_servers=sleep")
    assert result.ret == 0
    assert reference_result(run_file)["verdict"] == "PASS"
    conditions = [measured["conditions"] for measured in run_file["measurements"]]
    assert {each["treatment"] for each in conditions} == {"1 sleeping server beside it"}
    assert all('"enable_sleep_mode": true' in each["flags"] for each in conditions)
    starts = [{run["start_id"] for run in measured["runs"][:8]} for measured in run_file["measurements"]]
    assert starts == [{2}, {2}, {1}]


def test_servers_that_may_not_live_together_start_in_sequence(emulate):
    result, run_file = emulate(SUITE, "--llmperf-set", "resident_servers=none")
    assert result.ret == 0
    assert not any("treatment" in measured["conditions"] for measured in run_file["measurements"])


def test_server_of_the_fixture_is_the_candidate_of_the_comparison(emulate):
    result, run_file = emulate(FIXTURE)
    assert result.ret == 0
    measured, candidate, reference = run_file["measurements"]
    assert measured["runs"][0]["start_id"] == candidate["runs"][0]["start_id"] == 1
    assert reference["runs"][0]["start_id"] == 2


@pytest.mark.parametrize("suite", [SUITE, FIXTURE], ids=["spec", "fixture"])
def test_planted_flag_reaches_the_candidate_alone(emulate, suite):
    result, run_file = emulate(suite, "--plant-flag", "vllm:enforce-eager")
    assert result.ret == 1
    flags = [(measured["conditions"].get("installation"), "enforce_eager" in measured["conditions"]["flags"])
             for measured in run_file["measurements"]]
    assert sorted(flags, key=str) == [("reference", False), (None, True), (None, True)]


def test_sides_of_a_claim_alternate_without_restarts(emulate):
    result, run_file = emulate(CLAIM)
    assert result.ret == 0
    (claim,) = run_file["claims"]
    assert claim["order"]["1"].startswith("ABBAAB")
    starts = {run["start_id"] for measured in run_file["measurements"] for run in measured["runs"]}
    assert len(starts) <= 6  # A, B and A's reference started once, and once more where the comparison stayed open


def test_candidate_alone_becomes_a_baseline(emulate, pytester):
    result, _ = emulate(SUITE, "--update-baselines-new")
    assert result.ret == 0
    (stored,) = Path(pytester.path, "baselines/emulated-h200").rglob("*.json")
    (measurement,) = json.loads(stored.read_text())["measurements"].values()
    assert "installation" not in measurement["fingerprint"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--reference=vllm",), "*write it as ENGINE=PLACE*"),
        (("--reference=vlm=/x",), "*There is no engine 'vlm'. Did you mean 'vllm'?*"),
        (("--reference=vllm=/nowhere/else",), "*'/nowhere/else'*neither a folder*Correct --llmperf-reference vllm=*"),
        (("--emulate=h200", "--reference=vllm=/opt/vllm"), "*with --emulate no build is started*vllm=emulator*"),
        (("--reference=vllm=emulator", "--reference=vllm=other"), "*names two builds of vllm*"),
    ],
)
def test_reference_that_cannot_be_meant_is_refused_before_tests(run, options, expected):
    result, _ = run(SUITE, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([expected])
    assert "Traceback" not in result.stderr.str()


def test_reference_equal_to_candidate_is_refused(run, pytester):
    environment = Path(pytester.path, "environment", "bin")
    environment.mkdir(parents=True)
    python = environment / "python"
    python.write_text("#!/bin/sh\necho 0.31.0\n")
    python.chmod(0o755)
    place = environment.parent
    result, _ = run("def test_plain(): pass\n", f"--llmperf-engine=vllm={place}", f"--reference=vllm={place}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*is the build under test itself*"])
