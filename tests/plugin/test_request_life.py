"""Cancellations, retries and rate limits, from a test file to the verdict."""

from pathlib import Path

import pytest

from pytest_llmperf.results.requests_file import decode

SUITE = """
from pytest_llmperf import cancelled, closed, poisson, random_tokens, retried, vllm

SPEC = vllm("llama-3.1-8b", max_model_len=4096)
CHAT = random_tokens(input=200, output=40, arrivals={arrivals}, requests=60)

def test_it(perf):
    run = perf.measure(SPEC, {workload}, runs={runs})
    perf.check(run, {checks})
"""


def records_of(pytester):
    return [record for path in Path(pytester.path).rglob("*.json.gz") for record in decode(path).records]


def tags_of(junit):
    return {child.tag for case in junit.iter("testcase") for child in case} & {"failure", "error"}


def suite(workload, *checks, runs=1, arrivals="closed(8)"):
    return SUITE.format(workload=workload, checks=", ".join(map(repr, checks)), runs=runs, arrivals=arrivals)


@pytest.mark.emulated
@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_cancelled_requests_have_first_tokens_and_no_end(run, pytester, clock):
    text = suite("cancelled(CHAT, share=0.5, after_tokens=10)", "cancelled_rate >= 20%", "error_rate == 0", runs=2)
    result, _ = run(text, "--emulate", "h200", "--emulate-clock", clock)
    assert result.ret == 0, result.outlines
    cancelled = [record for record in records_of(pytester) if record.outcome.value == "cancelled by the client"]
    assert all(record.arrivals_ns for record in cancelled)
    counts = {record.output_tokens for record in cancelled}
    assert counts == {10} if clock == "virtual" else min(counts) >= 10  # a busy client reads several tokens at once


@pytest.mark.emulated
@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_requests_are_cancelled_after_stated_time(run, pytester, clock):
    text = suite("cancelled(CHAT, share=0.5, after_s=0.06)", "cancelled_rate >= 20%", "error_rate == 0")
    result, _ = run(text, "--emulate", "h200", "--emulate-clock", clock)
    if clock == "real" and result.ret == 10:  # a busy client read faster than an H200 decodes
        assert "is below the lower bound of" in " ".join(result.outlines), result.outlines
    else:
        assert result.ret == 0, result.outlines
    lasted_ms = [(record.ended_ns - record.intended_ns) / 1e6 for record in records_of(pytester)
                 if record.outcome.value == "cancelled by the client"]
    assert len(lasted_ms) >= 12
    assert min(lasted_ms) >= 60
    assert clock == "real" or max(lasted_ms) < 61


@pytest.mark.emulated
@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_server_that_keeps_blocks_of_cancelled_requests_is_an_error(run, clock):
    text = suite("cancelled(CHAT, share=1, after_tokens=1)", "cancelled_rate >= 20%")
    text = text.replace("output=40", "output=3000")
    result, junit = run(text, "--emulate", "h200", "--emulate-clock", clock, "--emulate-fault", "disconnects=ignored")
    assert tags_of(junit) == {"error"}, result.outlines
    result.stdout.fnmatch_lines(["*blocks are still held*"])


@pytest.mark.emulated
@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_retries_answer_limited_requests_and_cost_time_and_tokens(run, pytester, clock):
    text = suite("retried(CHAT, attempts=8, backoff_s=0.05)", "error_rate == 0", "rate_limited_rate == 0",
                 "retried_prompt_tokens <= 0")
    result, _ = run(text, "--emulate", "h200", "--emulate-clock", clock, "--emulate-fault", "limited=20%")
    assert result.ret == 1, result.outlines
    result.stdout.fnmatch_lines(["retried_prompt_tokens*FAIL*"])
    records = records_of(pytester)
    again = [record for record in records if record.attempts > 1]
    assert all(record.ok for record in records)
    assert 4 <= len(again) <= 30
    for record in again:
        pauses_ms = 50 * (2 ** (record.attempts - 1) - 1)
        assert (record.arrivals_ns[0] - record.intended_ns) / 1e6 >= pauses_ms


@pytest.mark.emulated
@pytest.mark.parametrize(("checks", "tag", "message"), [
    (("error_rate == 0",), "error", "*rate limited*rate_limited_rate*"),
    (("error_rate == 0", "rate_limited_rate <= 0.1%"), "failure", "rate_limited_rate*FAIL*"),
    (("rate_limited_rate <= 90%", "ttft_p99 <= 10s"), "failure", "ttft_p99*FAIL*"),
])
def test_limited_requests_are_judged_by_metric_of_limits_and_by_latency(run, checks, tag, message):
    text = suite("CHAT", *checks, arrivals="poisson(20)").replace("requests=60", "requests=600")
    result, junit = run(text, "--emulate", "h200", "--emulate-fault", "limited=4%")  # which spares the warm-up
    assert tags_of(junit) == {tag}, result.outlines
    result.stdout.fnmatch_lines([message])


SOAK = """
from pytest_llmperf import poisson, random_tokens, vllm

def test_it(perf):
    hour = random_tokens(input=100, output=20, arrivals=poisson(0.5), requests="10min")
    run = perf.measure(vllm("llama-3.1-8b", max_model_len=4096), hour, runs=6, keep=("engine",))
    perf.check(run, "ttft_p99 <= 10s", "error_rate == 0")
"""


@pytest.mark.emulated
@pytest.mark.parametrize(("faults", "tag"), [((), None), (("--emulate-fault", "throttle=+60%:40000"), "error")])
def test_soak_of_an_hour_finds_server_that_becomes_slower(run, faults, tag):
    result, junit = run(SOAK, "--emulate", "h200", *faults)
    assert tags_of(junit) == ({tag} if tag else set()), result.outlines
    if tag:
        result.stdout.fnmatch_lines(["*not steady*tpot_mean*"])


def test_run_longer_than_time_limit_is_refused_before_start(run):
    result, _ = run(SOAK.replace("10min", "2h"), "--emulate", "h200", "--emulate-clock", "real")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*the last request is sent 7200 s after the start*measure_timeout_s = 7800*"])
