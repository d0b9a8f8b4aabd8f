"""The shipped suites on real engines turn red, and name the cause, when what they claim is taken away."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "tests" / "stubs"
ENGINES = ["vllm", "sglang"]
pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]


def planted(suite, *replacements):
    """The suite's own text with something taken away, and fewer requests so that it ends soon.

    Another limit of sequences keeps the sides apart: a claim of two equal specifications is refused.
    """
    text = (ROOT / "suites" / suite).read_text(encoding="utf-8")
    for old, new in replacements:
        assert old in text, f"{suite} has changed: {old!r} is gone"
        text = text.replace(old, new)
    return text


def row(result, name):
    """The verdict table's line of a metric."""
    return next(line for line in result.outlines if re.match(re.escape(name) + r"\s", line))


def assert_mechanism_fails(run_real, text, test, metric, *options):
    """The claim fails by its mechanism on side A, and the server of side B never starts.

    Without the setting both servers would live together, and side B would be measured in turn with side A.
    """
    result, tags = run_real(text, "--llmperf-set=resident_servers=none", *options)
    assert tags == {test: {"failure"}}
    assert result.ret == 1
    assert "FAIL" in row(result, metric)
    result.stdout.fnmatch_lines(["*; side B was therefore not measured"])


def test_disabled_prefix_cache_fails_mechanism_check(run_real):
    text = planted(
        "test_prefix_caching.py",
        ("cached.with_flags(enable_prefix_caching=False)", "cached.with_flags(max_num_seqs=200)"),
        ("enable_prefix_caching=True", "enable_prefix_caching=False"),
        ("requests=case.requests", "requests=9"),
    )
    assert_mechanism_fails(run_real, text, "test_shared_prefixes_come_from_the_cache_on_a_cpu[cpu]",
                           "prefix_cache_hit_rate(a)", "-k", "shared_prefixes")


@pytest.mark.thorough
def test_oversized_chunk_budget_fails_mechanism_check(run_real):
    text = planted(
        "test_chunked_prefill.py",
        ("small.with_flags(max_num_batched_tokens=case.most)", "small.with_flags(max_num_seqs=200)"),
        ("max_num_batched_tokens=case.budget", "max_num_batched_tokens=case.most"),
    )
    assert_mechanism_fails(run_real, text, "test_small_chunks_smooth_itl_on_a_cpu[cpu]", "chunk_budget(a)",
                           "-k", "small_chunks")


@pytest.mark.thorough
def test_disabled_speculation_fails_mechanism_check(run_real):
    text = planted(
        "test_speculative_decoding.py",
        ("plain.with_flags(speculative_config=NGRAM)", "plain.with_flags(max_num_seqs=200)"),
        ("requests=12", "requests=6"),
    )
    assert_mechanism_fails(run_real, text, "test_ngram_drafts_pay_on_a_cpu[cpu]", "spec_acceptance_rate(a)",
                           "-k", "ngram_drafts")


@pytest.mark.thorough
def test_disabled_radix_cache_fails_mechanism_check(run_real):
    text = planted(
        "test_radix_cache.py",
        ("cached.with_flags(disable_radix_cache=True)", "cached.with_flags(max_running_requests=200)"),
        ("context_length=case.context)", "context_length=case.context, disable_radix_cache=True)"),
    )
    assert_mechanism_fails(run_real, text, "test_shared_prefixes_come_from_the_radix_tree[cpu]",
                           "prefix_cache_hit_rate(a)")


@pytest.mark.thorough
def test_detached_lmcache_fails_mechanism_check(run_real):
    text = planted("test_lmcache.py", (
        "return bare(case).with_lmcache(chunk_size=case.chunk, l1_size_gb=case.host_gb)",
        "return vllm(case.model, max_model_len=case.context, enable_prefix_caching=False, max_num_seqs=200)",
    ))
    assert_mechanism_fails(run_real, text, "test_warm_prefixes_come_from_host_memory[cpu]",
                           "external_cached_tokens(a)", "-k", "warm_prefixes")


@pytest.mark.thorough
def test_batch_limit_of_one_fails_batching_claim_and_names_occupancy(run_real):
    result, tags = run_real(planted("test_batch_limits.py"), "-k", "limit_of_sequences and few",
                            "--plant-flag", "vllm:max-num-seqs=1")
    assert tags == {"test_throughput_follows_limit_of_sequences[few-cpu]": {"failure"}}
    result.stdout.fnmatch_lines(["*planted: vllm:max_num_seqs=1*", "tokens_per_step *≥ 2 *FAIL*"])


BROKEN = f"""
import subprocess, sys, threading
import pytest
from pytest_llmperf import closed, endpoint, random_tokens, vllm

pytestmark = [pytest.mark.cpu, pytest.mark.engine(vllm("tiny", max_model_len=4096))]
ANSWERS = random_tokens(input=100, output=16, arrivals=closed(2), requests=60)

def test_an_slo_that_cannot_be_met(engine, perf):
    perf.check(perf.measure(engine, ANSWERS, runs=2), "ttft_p50 <= 0.5ms")

def test_each_protocol_is_measured(engine, perf):
    few = random_tokens(input=50, output=8, arrivals=closed(2), requests=12)
    for protocol in ("completions", "chat", "responses"):
        for stream in (True, False):
            service = endpoint(engine.url, model=engine.model, protocol=protocol, stream=stream)
            run = perf.measure(service, few, runs=1)
            perf.check(run, "error_rate == 0", "output_throughput >= 0.1/s")
            assert {{record.output_tokens for record in run.runs[0].records}} == {{8}}

def test_three_seconds_more_to_the_first_token(engine, perf):
    command = [sys.executable, {str(STUBS / "slow_proxy.py")!r}, str(engine._handle.contact.address[1]), "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            slow = endpoint(f"http://127.0.0.1:{{proxy.stdout.readline().strip()}}", model=engine.model)
            few = random_tokens(input=100, output=16, arrivals=closed(6), requests=12)
            perf.check(perf.measure(slow, few, runs=2), "ttft_p50 <= 500ms", "tpot_mean <= 500ms")
        finally:
            proxy.terminate()

def test_the_server_is_killed_mid_run(engine, perf):
    long = random_tokens(input=100, output=200, arrivals=closed(2), requests=40)
    killer = threading.Timer(6.0, lambda: __import__("os").kill(engine._handle.unit.process.pid, 9))
    killer.start()
    perf.check(perf.measure(engine, long, runs=3), "error_rate == 0")
"""


@pytest.mark.thorough
def test_missed_slo_and_slow_connector_fail_and_dead_server_is_an_error(run_real):
    result, tags = run_real(BROKEN)
    assert tags == {
        "test_an_slo_that_cannot_be_met": {"failure"},
        "test_each_protocol_is_measured": set(),
        "test_three_seconds_more_to_the_first_token": {"failure"},
        "test_the_server_is_killed_mid_run": {"error"},
    }
    slow = [line for line in result.outlines if line.startswith("ttft_p50")]
    assert all("FAIL" in line for line in slow)
    assert any(re.search(r"3\.\d+ s|3\d\d\d(\.\d+)? ms", line) for line in slow), slow
    assert "PASS" in row(result, "tpot_mean")
    result.stdout.fnmatch_lines(["*died: signal 9 (SIGKILL)*"])


def test_mistyped_flag_is_usage_before_the_real_engine_starts(run_real):
    result, tags = run_real(
        "import pytest\nfrom pytest_llmperf import vllm\n"
        '@pytest.mark.cpu\n@pytest.mark.engine(vllm("tiny", max_num_batched_tokes=256))\ndef test_x(engine): pass\n'
    )
    assert tags == {"test_x": {"error"}}
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*vllm * has no flag --max-num-batched-tokes. Did you mean max_num_batched_tokens?*"])
