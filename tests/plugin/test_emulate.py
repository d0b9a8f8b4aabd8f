"""`--emulate`: the emulator in place of the engine, and everything that it touches says so."""

import json
from pathlib import Path

import pytest

SUITE = """
from pytest_llmperf import by_kind, closed, random_tokens, shared_prefix, poisson, vllm

CASES = by_kind(h200={"model": "llama-3.1-8b"}, l4={"model": "phi-4-mini"}, cpu={"model": "tiny"})

@CASES
def test_slo(case, perf):
    engine = vllm(case.model, max_model_len=8192)
    run = perf.measure(engine, random_tokens(input=100, output=20, arrivals=closed(2), requests=12))
    perf.check(run, "error_rate == 0", "tpot_mean <= 100ms")

@CASES
def test_cache(case, perf):
    on = vllm(case.model, max_model_len=8192, enable_prefix_caching=True)
    traffic = shared_prefix(prefix=2000, suffix=(32, 96), output=8, groups=3, arrivals=poisson(4), requests=30)
    perf.claim(on, on.with_flags(enable_prefix_caching=False), traffic, "ttft_p50(b) / ttft_p50(a) >= 1.5",
               mechanism=["prefix_cache_hit_rate(a) >= 80%", "prefix_cache_hit_rate(b) == 0"])
"""

pytestmark = pytest.mark.emulated


@pytest.fixture
def emulate(run):
    return lambda *args: run(SUITE, "--emulate", *args)


def properties(case):
    return {p.get("name"): p.get("value") for p in case.iter("property")}


def test_tilde_in_runs_option_is_expanded_to_home_directory(emulate, pytester, monkeypatch):
    """No shell resolves the ~ in --llmperf-runs=~/results."""
    monkeypatch.setenv("HOME", str(pytester.path))
    emulate("h200", "-k", "slo", "--llmperf-runs=~/results")
    assert list(pytester.path.glob("results/*/session.json"))
    assert not (pytester.path / "~").exists()


def test_emulated_suite_passes_and_labels_all_results_as_emulated(emulate, pytester):
    result, junit = emulate("h200", "-rs")
    result.assert_outcomes(passed=2, skipped=4)
    result.stdout.fnmatch_lines(["*emulated h200, virtual time: nothing here was measured on hardware*"])
    result.stdout.fnmatch_lines(["*needs l4; this run has 8 × emulated h200*"])
    suite = junit.find(".//testsuite")
    assert properties(suite.find("properties"))["llmperf.emulated"] == "emulated h200, virtual time"
    (case,) = [case for case in junit.iter("testcase") if case.get("name") == "test_slo[h200]"]
    assert properties(case)["llmperf.hardware"] == "emulated h200"
    (run_file,) = Path(pytester.path, ".llmperf/runs").glob("*/tests/*test_slo*.json")
    assert json.loads(run_file.read_text())["measurements"][0]["conditions"]["hardware"] == "emulated h200"


def test_the_same_seed_gives_the_same_numbers_and_another_one_others(emulate):
    def numbers(*args):
        _, junit = emulate("h200", "-k", "test_slo", *args)
        return {name: value for name, value in properties(junit).items() if name.startswith("llmperf.metric.")}

    first = numbers()
    assert first
    assert numbers() == first
    assert numbers("--emulate-seed", "1") != first


def test_planted_fault_fails_mechanism_of_claim(emulate):
    result, junit = emulate("h200", "--emulate-fault", "prefix_cache=off")
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=1, skipped=4)
    result.stdout.fnmatch_lines(["*prefix_cache_hit_rate(a)*FAIL*"])
    assert "planted: prefix_cache=off" in properties(junit)["llmperf.emulated"]


def test_a_flag_that_cannot_be_emulated_is_refused(run):
    result, _ = run(
        """
from pytest_llmperf import closed, random_tokens, vllm

def test_it(perf):
    perf.measure(vllm("tiny", frobnicate=3), random_tokens(input=8, output=4, arrivals=closed(1), requests=2))
""",
        "--emulate", "h200",
    )
    assert result.ret == 10
    result.stdout.fnmatch_lines(["*--frobnicate*"])


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_an_endpoint_is_not_emulated(run, clock):
    result, _ = run(
        """
from pytest_llmperf import closed, endpoint, random_tokens

def test_it(perf):
    perf.measure(endpoint("http://127.0.0.1:1", model="m"), random_tokens(input=8, output=4, arrivals=closed(1),
                 requests=2))
""",
        "--emulate", "h200", "--emulate-clock", clock,
    )
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*nothing can stand in for it. Drop --emulate.*"])


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--emulate", "b300"), "*--emulate b300: there is no such GPU kind.*"),
        (("--emulate", "h200", "--emulate-fault", "gremlins=5"), "*--emulate-fault gremlins=5: no such fault.*"),
        (("--emulate-fault", "kv=-50%"), "*--emulate KIND is missing*"),
        (("--emulate", "h200", "-m", "l4"), "*-m asks for l4, and --emulate gives 8 × emulated h200*"),
    ],
)
def test_contradictory_emulation_options_are_refused(run, args, complaint):
    result, _ = run(SUITE, *args)
    assert result.ret == 4
    result.stderr.fnmatch_lines([complaint])


def test_emulated_suite_passes_under_xdist(emulate):
    result, _ = emulate("h200", "-n", "2")
    result.assert_outcomes(passed=2, skipped=4)


def test_emulated_test_passes_in_real_time_over_http(emulate, pytester):
    result, junit = emulate("h200", "--emulate-clock", "real", "-k", "test_slo")
    result.assert_outcomes(passed=1, skipped=2)
    assert properties(junit)["llmperf.emulated"] == "emulated h200, real time"


def test_latency_below_the_gpu_bound_is_an_error(run):
    """Steps take 60 % less time than the weights need to be read: no H200 does that."""
    result, _ = run(SUITE, "--emulate", "h200", "-k", "slo", "--emulate-fault", "step_time=-60%")
    assert result.ret == 10
    result.stdout.fnmatch_lines(["*is below the lower bound of H200 in 12 of 12 requests*"])
