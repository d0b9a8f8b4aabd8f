"""Prefill servers and decode servers under `--emulate`: facts by pool, verdicts, and planted faults with a cause."""

import json

import pytest

pytestmark = pytest.mark.emulated

SUITE = """
import pytest
from pytest_llmperf import nixl, poisson, prefill_decode, random_tokens, replicas, shared_prefix, vllm, vllm_router

ENGINE = vllm("llama-3.1-8b", max_model_len=8192)
SPLIT = prefill_decode(prefill=replicas(ENGINE.with_flags(max_num_batched_tokens=4096), 2), decode=replicas(ENGINE, 1),
                       connector=nixl(), router=vllm_router(policy="round_robin"))
LOAD = random_tokens(input=(500, 4000), output=64, arrivals=poisson(8), requests=80)
pytestmark = pytest.mark.h100

@pytest.mark.engine(SPLIT)
def test_measure(engine, perf):
    run = perf.measure(engine, LOAD, runs=1)
    perf.check(run, "error_rate == 0", "prefill_tokens(decode) == 0", "finished_requests(prefill) == 80",
               "generated_tokens(decode) == 5120", "transfers == 80", "transferred_bytes >= 0.95 * expected",
               "failed_transfers == 0", "prefix_cache_hit_rate == 0", "replica_imbalance(prefill) <= 1.3")

def test_prefix(perf):
    load = shared_prefix(prefix=2048, suffix=64, output=16, groups=3, arrivals=poisson(4), requests=30)
    run = perf.measure(SPLIT, load, runs=1)
    perf.check(run, "prefix_cache_hit_rate >= 50%", "transferred_bytes >= 0.95 * expected")

def test_claim(perf):
    fleet = replicas(ENGINE, 3, router=vllm_router(policy="round_robin"))
    perf.claim(SPLIT, fleet, LOAD, "itl_p99(b) / itl_p99(a) >= 1.5", runs=2, allow={"ttft_p50": 3.0},
               mechanism=["prefill_tokens(a.decode) == 0", "transferred_bytes(a) >= 0.95 * expected"])

def test_valid(perf):
    perf.check(perf.measure(SPLIT, LOAD, runs=1), "error_rate == 0")
"""


def text_of(junit, kind):
    return "".join(node.text or "" for node in junit.iter(kind))


def test_split_is_measured_and_claimed_and_transfers_are_no_cache_hits(run, pytester):
    result, _ = run(SUITE, "--emulate", "h100", "-k", "measure or claim")
    result.assert_outcomes(passed=2)
    (file,) = (json.loads(path.read_text()) for path in pytester.path.glob(".llmperf/runs/*/tests/*measure*.json"))
    (measured,) = file["measurements"]
    conditions, (first,) = measured["conditions"], measured["runs"]
    assert conditions["connector"] == "nixl"
    assert "max_num_batched_tokens=4096" in conditions["pool.prefill"]
    assert "max_num_batched_tokens" not in conditions["pool.decode"]
    assert list(first["replicas"]) == ["prefill-1", "prefill-2", "decode-1"]
    prompts, counters = first["replicas"]["decode-1"]["prompt_tokens"], first["counters"]
    assert counters["prompt_tokens"] == counters["prompt_tokens_computed"] == prompts
    assert counters["transferred_bytes"] == counters["expected_transfer_bytes"] == prompts * 131072
    assert (counters["requests_finished"], counters["generation_tokens"]) == (80, 5120)


def test_prompts_that_repeat_hit_the_caches_of_the_pools_and_only_the_rest_is_transferred(run, pytester):
    result, _ = run(SUITE, "--emulate", "h100", "-k", "prefix")
    result.assert_outcomes(passed=1)
    (file,) = (json.loads(path.read_text()) for path in pytester.path.glob(".llmperf/runs/*/tests/*.json"))
    counters = file["measurements"][0]["runs"][0]["counters"]
    rest = counters["prompt_tokens.decode"] - counters["prefix_cache_hits.decode"]
    assert counters["cached_tokens_p2p"] == rest < counters["prompt_tokens.decode"] / 3
    assert counters["cached_tokens_device.decode"] == counters["prefix_cache_hits.decode"]


def test_server_without_requests_makes_the_run_invalid(run):
    result, junit = run(SUITE, "--emulate", "h100", "--emulate-fault", "starved_replica=1", "-k", "valid")
    assert result.ret == 10
    assert "server prefill-1 served none of 80 requests: vllm_router" in text_of(junit, "error")
    result, junit = run(SUITE, "--emulate", "h100", "--emulate-fault", "starved_replica=3", "-k", "valid")
    assert "starved_replica=3 leaves no decode server" in text_of(junit, "error")


def test_emulator_in_real_time_shows_a_page_of_each_server_of_both_pools(run):
    result, _ = run(SUITE.replace("requests=80", "requests=20"), "--emulate", "h100", "--emulate-clock", "real",
                    "-k", "test_valid")
    assert result.ret == 0


ALONE = """
import pytest
from pytest_llmperf import closed, nixl, prefill_decode, random_tokens, replicas, vllm, vllm_router

pytestmark = pytest.mark.h100
LOAD = random_tokens(input=500, output=16, arrivals=closed(2), requests=20)

def test_pool(perf):
    perf.measure(replicas(vllm("tiny"), 2), LOAD)

def test_gpus(perf):
    perf.measure(prefill_decode(prefill=replicas(vllm("tiny"), 8), decode=replicas(vllm("tiny"), 1), connector=nixl(),
                                router=vllm_router()), LOAD)
"""


def test_pool_alone_and_too_many_gpus_are_refused_before_a_start(run):
    result, junit = run(ALONE, "--emulate", "h100", "-k", "pool or gpus")
    result.assert_outcomes(failed=2)
    text = text_of(junit, "failure")
    assert "these servers have no router. Write replicas(" in text
    assert "needs 9 GPUs, and an emulated host has 8" in text
