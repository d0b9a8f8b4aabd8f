"""Real SGLang: it serves exactly what is asked, its counters agree, and every way to fail says why."""

import re

import pytest

ENGINES = ["sglang"]
pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

HEAD = """
import os, threading, time
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

@pytest.mark.engine(E)
def test_hits_are_those_of_the_prompts(engine, perf):
    \"\"\"3 groups share 200 tokens each; pages of 1 token, so all but the first of each group find exactly those.\"\"\"
    shared = shared_prefix(prefix=200, suffix=50, groups=3, output=4, arrivals=closed(1), requests=12)
    run = perf.measure(engine, shared, runs=2)
    perf.check(run, "cached_tokens == 1800", "prefix_cache_hit_rate == 60%")
    assert sum(record.cached_tokens for record in run.records) == 2 * 1800

@pytest.mark.engine(E)
def test_the_flush_works(engine, perf):
    prompts = random_tokens(input=300, output=4, arrivals=closed(1), requests=6)
    perf.measure(engine, prompts, runs=1)
    kept = perf.measure(engine, prompts, runs=1, keep=("engine",))
    flushed = perf.measure(engine, prompts, runs=1)
    assert kept.value("cached_tokens") == 6 * 299
    assert flushed.value("cached_tokens") == 0
"""


def test_serves_and_counts(run_real):
    _, tags = run_real(SERVES)
    assert tags == {
        "test_every_token_is_counted": set(),
        "test_hits_are_those_of_the_prompts": set(),
        "test_the_flush_works": set(),
    }


NATIVE = HEAD + """
def test_without_a_tokenizer_and_without_a_radix_cache(perf):
    bare = sglang("tiny", context_length=4096, skip_tokenizer_init=True, disable_radix_cache=True)
    shared = shared_prefix(prefix=200, suffix=50, output=8, arrivals=closed(2), requests=12)
    run = perf.measure(bare, shared, runs=1)
    perf.check(run, "error_rate == 0", "prefix_cache_hit_rate == 0")
    assert {sum(record.chunk_tokens) for record in run.records} == {8}
    assert run.runs[0].counters["generation_tokens"] == 96
"""


def test_its_own_route_and_no_radix_cache(run_real):
    _, tags = run_real(NATIVE)
    assert tags == {"test_without_a_tokenizer_and_without_a_radix_cache": set()}


FAILS = HEAD + """
@pytest.mark.engine(E)
@pytest.mark.parametrize("victim", ["server", "sglang::schedul"])
def test_killed(engine, perf, victim):
    from pytest_llmperf.process import tree
    names = {tree.read_stat(pid).name: pid for pid in engine.process.pids()}
    pid = engine.process.pid if victim == "server" else names[victim]
    killed = []
    def kill():
        killed.append(time.monotonic())
        os.kill(pid, 9)
    threading.Timer(6.0, kill).start()
    try:
        perf.measure(engine, random_tokens(input=100, output=200, arrivals=closed(2), requests=400), runs=1)
    finally:
        print(f"told after {time.monotonic() - killed[0]:.1f} s")

@pytest.mark.engine(sglang("tiny", chunked_prefil_size=256))
def test_unknown_flag(engine): pass
"""


def test_what_fails_is_an_error_with_sglangs_words(run_real):
    result, tags = run_real(FAILS)
    assert tags == {"test_killed[server]": {"error"}, "test_killed[sglang::schedul]": {"error"},
                    "test_unknown_flag": {"error"}}  # fmt: skip
    assert result.ret == 10
    told = [float(found) for found in re.findall(r"told after ([\d.]+) s", result.stdout.str())]
    assert len(told) >= 2
    assert max(told) < 10
    result.stdout.fnmatch_lines(["*sglang server died: *"])
    result.stdout.fnmatch_lines(["*ended before it was ready: exit code 2*", "*arguments: --chunked-prefil-size*"])
