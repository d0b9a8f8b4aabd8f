"""The capacity search through the user's door, on an emulated H200."""

import re

import pytest

SUITE = """
from pytest_llmperf import poisson, random_tokens, vllm

CHAT = random_tokens(input=(200, 600), output=(10, 30), arrivals=poisson(40), requests=250)
FULL = vllm("llama-3.1-8b", max_model_len=4096)
HALF = FULL.with_flags(num_gpu_blocks_override=400)
SLO = "ttft_p90 <= 150ms"
"""
SEARCH = SUITE + """
from pytest_llmperf.metrics.summary import percentile

def knee(perf, rates):
    at = {}
    for rate in rates:
        runs = perf.measure(FULL, CHAT.at_rate(rate, seed_offset=5000), runs=8, may_preempt=True).metrics
        at[rate] = percentile(sorted(ms for run in runs for ms in run.samples("ttft")), 0.9)
    below = max(rate for rate in rates if at[rate] <= 150)
    above = min(rate for rate in rates if at[rate] > 150)
    return below + (above - below) * (150 - at[below]) / (at[above] - at[below])

def test_it(perf):
    found = perf.max_rate(FULL, CHAT, slo=SLO)
    true = knee(perf, (92, 96, 100, 104))
    print(f"found {found.value('max_rate')} true {true}")
    perf.compare_with_baseline(found)
"""
CLAIM = SUITE + """
def test_it(perf):
    perf.claim_max_rate(HALF, FULL, CHAT, "max_rate(a) / max_rate(b) >= 0.9", slo=SLO, runs=2)
"""


@pytest.mark.emulated
def test_max_rate_is_within_5_percent_of_true_knee_and_repeatable(run):
    result, _ = run(SEARCH, "--emulate", "h200", "-rA", "--update-baselines-new")
    (line,) = [line for line in result.outlines if line.startswith("found")]
    match, true = (float(number) for number in re.findall(r"[\d.]+", line))
    assert abs(match / true - 1) <= 0.05
    result.stdout.fnmatch_lines(["*created*max_rate*requests/s*"])
    shorter = SEARCH.replace("knee(perf, (92, 96, 100, 104))", "1").replace("perf.compare_with_baseline(found)", "")
    again, _ = run(shorter, "--emulate", "h200", "-rA")
    (line_again,) = [line for line in again.outlines if line.startswith("found")]
    assert line_again.split()[1] == line.split()[1]  # the same seed, the same answer


@pytest.mark.emulated
@pytest.mark.thorough
def test_a_server_with_half_the_cache_does_not_serve_as_many_users(run):
    result, _ = run(CLAIM, "--emulate", "h200")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["max_rate(a) / max_rate(b) *≥ 0.9×*FAIL*"])
