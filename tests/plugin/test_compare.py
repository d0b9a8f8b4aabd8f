"""`perf.compare` in a user's test: the tiers of an emulated LMCache are emptied in turn and compared by name."""


import pytest

pytestmark = pytest.mark.emulated

TIERS = """
import pytest
from pytest_llmperf import closed, random_tokens, sglang, vllm

ENGINES = {"vllm": vllm("llama-3.1-8b", max_model_len=16384), "sglang": sglang("llama-3.1-8b", context_length=16384)}

@pytest.mark.h200
@pytest.mark.parametrize("name", ENGINES)
def test_tiers(name, perf):
    engine = ENGINES[name].with_lmcache(chunk_size=256, l1_size_gb=16, l2_path="kv")
    prompts = random_tokens(input=3000, output=4, arrivals=closed(1), requests=4)
    hits = {}
    for tier, keep in {"cold": "l1 l2", "memory": "l1 l2", "disk": "l2", "empty": ""}.items():
        hits[tier] = perf.measure(engine, prompts, runs=2, keep=keep.split())
    assert [found.values("external_cached_tokens") for found in hits.values()] == [
        (0, 0), (4 * 2816, 4 * 2816), (4 * 2816, 4 * 2816), (0, 0)]
    assert hits["memory"].values("lmcache_l1_hit_rate") == (1, 1) == hits["disk"].values("lmcache_l2_hit_rate")
    assert [found.values("lmcache_l2_chunks") for found in hits.values()] == [(0, 0), (0, 0), (44, 44), (0, 0)]
    perf.compare("ttft_p50(disk) / ttft_p50(memory) >= 1", "ttft_p50(cold) / ttft_p50(memory)", *MORE, **hits)
"""


def test_a_ratio_is_judged_and_one_without_a_limit_is_reported(run, stored_checks):
    result, junit = run(TIERS.replace("*MORE, ", ""), "--emulate", "h200", "-rP")
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    for checks in map(stored_checks, junit.iter("testcase")):
        assert [check["verdict"] for check in checks] == ["PASS", "REPORTED"]
        assert checks[1]["metric"] == "ttft_p50(cold) / ttft_p50(memory)"
        assert checks[1]["interval"].startswith("98 % CI ")
        assert checks[1]["n"] == "2 pairs on the same server start"
    result.stdout.fnmatch_lines(["ttft_p50(cold) / ttft_p50(memory) * REPORTED *"])


def test_slower_tier_fails_and_wrong_side_name_is_usage_error(run, stored_checks):
    result, junit = run(TIERS.replace("*MORE", '"ttft_p50(memory) / ttft_p50(disk) >= 1"'), "--emulate", "h200",
                        "-k", "vllm")
    assert result.ret == 1
    ((case, checks),) = [(case, checks) for case in junit.iter("testcase") if (checks := stored_checks(case))]
    assert [check["verdict"] for check in checks] == ["PASS", "REPORTED", "FAIL"]
    assert case.find("failure") is not None
    result, _ = run(TIERS.replace("*MORE", '"ttft_p50(memroy) / ttft_p50(disk)"'), "--emulate", "h200", "-k", "vllm")
    result.stdout.fnmatch_lines(["*no other side is named 'memroy'; did you mean memory?*"])
