"""Answers of a deployment against those of one server: planted faults fail, equal servers pass."""

import pytest

pytestmark = pytest.mark.emulated

SUITE = """
import pytest
from pytest_llmperf import endpoint, nixl, prefill_decode, replicas, vllm, vllm_router

FLEET = replicas(vllm("llama-3.1-8b"), 2, router=vllm_router(policy="round_robin"))
POOL = replicas(vllm("llama-3.1-8b"), 1)
SPLIT = prefill_decode(prefill=POOL, decode=POOL, connector=nixl(), router=vllm_router(policy="round_robin"))

@pytest.mark.h100
def test_answers(perf):
    perf.check_answers(FLEET, prompts=120)

@pytest.mark.h100
def test_split(perf):
    perf.check_answers(SPLIT, prompts=120)

@pytest.mark.h100
def test_refused(perf):
    perf.check_answers(vllm("llama-3.1-8b"))
"""


def text_of(junit, kind):
    return " ".join("".join(node.text or "" for node in junit.iter(kind)).split())


def test_equal_replicas_and_an_equal_split_pass_against_one_server(run):
    result, junit = run(SUITE, "--emulate", "h100")
    result.assert_outcomes(passed=2, failed=1)
    assert "is no server that this test starts. Write check_answers(fleet)" in text_of(junit, "failure")


@pytest.mark.parametrize(("fault", "test"), [
    ("wrong_weights=2", "answers"), ("swapped=20%", "answers"), ("stale_blocks=20%", "answers"),
    ("wrong_weights=2", "split"), ("swapped=20%", "split"), ("stale_blocks=20%", "split"),
    ("truncated_transfers=20%", "split")])
def test_wrong_answers_of_a_server_fail(run, fault, test):
    result, junit = run(SUITE, "--emulate", "h100", "--emulate-fault", fault, "-k", f"test_{test}")
    assert result.ret == 1
    assert "the deployment repeats fewer answers of one server than this server itself" in text_of(junit, "failure")
