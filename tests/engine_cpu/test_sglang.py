"""Real SGLang: the server generates exactly the requested tokens, its counters agree, an unknown flag is reported."""

import pytest

ENGINES = ["sglang"]
pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

HEAD = """
import pytest
from pytest_llmperf import closed, random_tokens, sglang, shared_prefix

E = sglang("tiny", context_length=4096)
pytestmark = [pytest.mark.cpu]
"""

SERVES = HEAD + """
@pytest.mark.engine(E)
def test_every_token_is_counted(engine, perf):
    run = perf.measure(engine, random_tokens(input=100, output=16, arrivals=closed(2), requests=20), runs=2)
    perf.check(run, "error_rate == 0", "prefix_cache_hit_rate == 0", "preemptions == 0", "kv_blocks == 40000")
    for counters in (one.counters for one in run.runs):
        assert (counters["prompt_tokens"], counters["generation_tokens"]) == (2000, 320)
        assert counters["requests_finished"] == 20
    assert {sum(record.chunk_tokens) for record in run.records} == {16}  # a busy server merges chunks
    assert engine.facts["version"] == "0.5.23"
    assert run.value("chunk_budget") == 4096
"""


def test_sglang_serves_and_counts_every_token(run_real):
    _, tags = run_real(SERVES)
    assert tags == {"test_every_token_is_counted": set()}


# 120 requests: the p99 of 12 is their maximum, and one stall of 20 ms on two shared cores made that run invalid.
NATIVE = HEAD + """
def test_without_a_tokenizer_and_without_a_radix_cache(perf):
    bare = sglang("tiny", context_length=4096, skip_tokenizer_init=True, disable_radix_cache=True)
    shared = shared_prefix(prefix=200, suffix=50, output=8, arrivals=closed(2), requests=120)
    run = perf.measure(bare, shared, runs=1)
    perf.check(run, "error_rate == 0", "prefix_cache_hit_rate == 0")
    assert {sum(record.chunk_tokens) for record in run.records} == {8}
    assert run.runs[0].counters["generation_tokens"] == 960
"""


@pytest.mark.thorough
def test_sglang_generate_route_works_without_radix_cache(run_real):
    _, tags = run_real(NATIVE)
    assert tags == {"test_without_a_tokenizer_and_without_a_radix_cache": set()}


FAILS = HEAD + """
@pytest.mark.engine(sglang("tiny", chunked_prefil_size=256))
def test_unknown_flag(engine): pass
"""


def test_mistyped_flag_is_usage_before_real_sglang_starts(run_real):
    result, tags = run_real(FAILS)
    assert tags == {"test_unknown_flag": {"error"}}
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*sglang * has no flag --chunked-prefil-size. Did you mean chunked_prefill_size?*"])
