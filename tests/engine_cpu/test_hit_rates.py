"""Prefix-cache hits on the real engines: ours, the engine's own counter and the value worked out by hand are equal."""

import pytest

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

TEXT = """
import pytest
from pytest_llmperf import closed, random_tokens, sglang, shared_prefix, vllm

pytestmark = [pytest.mark.cpu]
ENGINES = {"vllm": vllm("tiny", max_model_len=4096), "sglang": sglang("tiny", context_length=4096)}
E = pytest.mark.engine(ENGINES["WHICH"])
BLOCK = {"vllm": 128, "sglang": 1}["WHICH"]
NAMED = {"vllm": ("vllm:prefix_cache_hits_total{", ""),
         "sglang": ("sglang:cached_tokens_total{", 'cache_source="device"')}["WHICH"]


def own_counter(engine):
    \"\"\"The engine's page, read without our parser.\"\"\"
    lines = engine._handle.control.client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(NAMED[0]) and NAMED[1] in line)


def three_hits(engine, perf, workload, **how):
    perf.measure(engine, workload, runs=1)  # warm-up comes before the first measurement, and would count
    before = own_counter(engine)
    run = perf.measure(engine, workload, runs=1, **how)
    perf.check(run, "error_rate == 0")
    told_by_answers = sum(record.cached_tokens for record in run.records)
    return run.value("cached_tokens"), told_by_answers, own_counter(engine) - before


@E
def test_shared_prefixes(engine, perf):
    \"\"\"Four prompts in each of 3 groups share 300 tokens: all but the first find the whole blocks of them.\"\"\"
    shared = shared_prefix(prefix=300, suffix=50, groups=3, output=4, arrivals=closed(1), requests=12)
    by_hand = 9 * (300 // BLOCK) * BLOCK
    assert three_hits(engine, perf, shared) == (by_hand,) * 3
    assert engine.facts["block_size"] == str(BLOCK)
    rate = f"prefix_cache_hit_rate == {by_hand / 4200}"
    perf.check(perf.measure(engine, shared, runs=2), rate)


@E
def test_repeated_prompts(engine, perf):
    \"\"\"The last token of a prompt is always computed, so 512 tokens have 3 whole blocks of 128, or 511 of one.\"\"\"
    prompts = random_tokens(input=512, output=4, arrivals=closed(1), requests=6)
    assert three_hits(engine, perf, prompts, keep=("engine",)) == (6 * (511 // BLOCK) * BLOCK,) * 3
    assert three_hits(engine, perf, prompts) == (0, 0, 0)  # what is not kept was flushed
"""


@pytest.mark.parametrize("which", ["vllm", pytest.param("sglang", marks=pytest.mark.thorough)])
def test_three_counts_agree_to_the_block(run_real, which):
    _, tags = run_real(TEXT.replace("WHICH", which))
    assert tags == {"test_shared_prefixes": set(), "test_repeated_prompts": set()}
