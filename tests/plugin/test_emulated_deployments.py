"""Replicas behind a router under `--emulate`: every verb takes them, and planted faults of replicas have a cause."""

import pytest

pytestmark = pytest.mark.emulated

SUITE = """
import pytest
from pytest_llmperf import nginx, poisson, replicas, shared_prefix, vllm, vllm_router

FLEET = replicas(vllm("llama-3.1-8b"), 4, router=vllm_router())
BY_TURN = FLEET.with_router(policy="round_robin")
LOAD = shared_prefix(prefix=4096, suffix=(64, 128), output=16, groups=23, arrivals=poisson(8), requests=120)

@pytest.mark.h100
@pytest.mark.engine(FLEET)
def test_claim(engine, perf):
    perf.claim(FLEET, BY_TURN, LOAD, "ttft_mean(b) / ttft_mean(a) >= 1.1", runs=2,
               mechanism=["prefix_cache_hit_rate(a) >= 75%", "prefix_cache_hit_rate(b) <= 70%",
                          "replica_imbalance(a) <= 2"])

@pytest.mark.h100
def test_speed(perf):
    run = perf.measure(BY_TURN, LOAD, runs=1)
    perf.check(run, "replica_slowdown <= 1.05")

@pytest.mark.h100
def test_balance(perf):
    run = perf.measure(BY_TURN, LOAD, runs=1)
    perf.check(run, "replica_imbalance <= 1.2")

@pytest.mark.h100
def test_idle(perf):
    run = perf.measure(BY_TURN, LOAD, runs=1)
    perf.check(run, "error_rate == 0")
"""
RATE = """

@pytest.mark.h100
def test_rate(perf):
    run = perf.max_rate(FLEET, LOAD, slo="ttft_p99 <= 300ms", precision=0.5, quick=True)
    perf.check(run, "max_rate >= 1/s")

@pytest.mark.h100
def test_too_many(perf):
    perf.measure(replicas(vllm("tiny", tensor_parallel_size=4), 4, router=nginx()), LOAD)
"""


def test_deployment_is_measured_claimed_and_searched(run):
    result, junit = run(SUITE + RATE, "--emulate", "h100")
    result.assert_outcomes(passed=4, skipped=1, failed=1)
    text = "".join(node.text or "" for node in junit.iter("failure"))
    assert "needs 16 GPUs, and an emulated host has 8" in text
    (case,) = (case for case in junit.iter("testcase") if case.get("name") == "test_claim")
    assert "vllm_router" in "".join(str(each.get("value")) for each in case.iter("property"))


@pytest.mark.parametrize(("fault", "test", "verdict", "words"), [
    ("router=round_robin", "claim", "FAIL", "prefix_cache_hit_rate"),
    ("starved_replica=2", "idle", "ERROR", "replica 2 of 4 served none of 120 requests: vllm_router"),
    ("starved_replica=2", "balance", "FAIL", "replica_imbalance"),
    ("slow_replica=+20%:2", "speed", "FAIL", "replica_slowdown"),
])
def test_planted_fault_of_a_replica_or_router_is_named(run, fault, test, verdict, words):
    result, junit = run(SUITE, "--emulate", "h100", "--emulate-fault", fault, "-k", f"test_{test}")
    assert result.ret == {"FAIL": 1, "ERROR": 10}[verdict]
    kind = {"FAIL": "failure", "ERROR": "error"}[verdict]
    assert words in "".join(node.text or "" for node in junit.iter(kind))


def test_emulator_in_real_time_shows_a_page_of_each_replica(run):
    result, _ = run(SUITE.replace("requests=120", "requests=40"), "--emulate", "h100", "--emulate-clock", "real",
                    "-k", "test_idle")
    assert result.ret == 0


COMPARED = """
import pytest
from pytest_llmperf import nginx, poisson, random_tokens, replicas, vllm

@pytest.mark.h100
def test_step(perf):
    fleet = replicas(vllm("llama-3.1-8b"), 2, router=nginx())
    run = perf.measure(fleet, random_tokens(input=512, output=64, arrivals=poisson(8), requests=60))
    perf.compare_with_baseline(run, primaries=["itl_p50"])
"""


def test_reference_build_replaces_the_engine_of_each_replica(run):
    result, junit = run(COMPARED, "--emulate", "h100", "--llmperf-reference", "vllm=emulator", "--emulate-fault",
                        "step_time=+10%")
    assert result.ret == 1
    assert "against the reference build" in "".join(node.text or "" for node in junit.iter("failure"))


def test_baseline_of_a_deployment_names_router_and_replicas_and_refuses_another_policy(run, pytester):
    run(COMPARED, "--emulate", "h100", "--update-baselines")
    (baseline,) = pytester.path.glob("baselines/emulated-h100/**/*.json")
    assert '"router.policy": "round_robin"' in baseline.read_text()
    assert '"replicas": "2"' in baseline.read_text()
    result, junit = run(COMPARED.replace("nginx()", 'nginx(policy="random")'), "--emulate", "h100")
    result.stdout.fnmatch_lines(["*INCOMPARABLE*"])
    assert "router.policy" in "".join(str(each.get("value")) for each in junit.iter("property")) + str(result.stdout)


STICKY = """
import pytest
from pytest_llmperf import multi_turn, poisson, replicas, vllm, vllm_router

CHATS = multi_turn(turns=4, input=400, output=20, conversations=40, arrivals=poisson(4))

@pytest.mark.h100
@pytest.mark.parametrize("policy", ["consistent_hash", "sticky_least_loaded", "round_robin"])
def test_chats(perf, policy):
    run = perf.measure(replicas(vllm("llama-3.1-8b"), 4, router=vllm_router(policy=policy)), CHATS, runs=1)
    perf.check(run, "hit_rate_turn2plus >= 45%")
    whole = [counters["requests_finished"] % 4 == 0 for counters in run.runs[0].replicas.values()]
    assert all(whole) or policy == "round_robin"
"""


def test_sticky_router_finds_the_cache_of_earlier_turns(run):
    result, _ = run(STICKY, "--emulate", "h100")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["FAIL *round_robin*hit_rate_turn2plus*"])
