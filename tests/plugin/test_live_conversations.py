"""Conversations with the server's own answers, from a test file to the run file."""

from pathlib import Path

import pytest

from pytest_llmperf.results.requests_file import decode

SUITE = """
from pytest_llmperf import closed, multi_turn, {engine}

TALK = multi_turn(conversations=4, turns=3, input=(8, 24), output=(20, 30), arrivals=closed(2), reply="server",
                  starters=2, starter=(100, 130), text={text})

def test_it(perf):
    run = perf.measure({engine}("llama-3.1-8b", {context}=4096), TALK, runs=1)
    perf.check(run, "error_rate == 0")
"""
CONTEXT = {"vllm": "max_model_len", "sglang": "context_length"}


@pytest.mark.emulated
@pytest.mark.parametrize(("engine", "clock", "text"), [
    ("vllm", "virtual", False), ("sglang", "virtual", False), ("sglang", "real", False), ("vllm", "real", True),
])
def test_emulated_engine_caches_answers_for_next_turn(run, pytester, engine, clock, text):
    suite = SUITE.format(engine=engine, context=CONTEXT[engine], text=text)
    result, _ = run(suite, "--emulate", "h200", "--emulate-clock", clock)
    assert result.ret == 0, result.outlines
    (path,) = Path(pytester.path).rglob("*.json.gz")
    records = decode(path).records
    assert [record.turn for record in records] == [1, 2, 3] * 4
    for record in records:
        if record.turn > 1:
            before = records[record.after]
            grown = record.prompt_tokens - before.prompt_tokens - before.output_tokens
            assert text or 8 <= grown <= 24
            assert text or record.prompt_tokens == record.asked_prompt_tokens
            # All but the last token of the answer, in whole blocks of 16 with vLLM.
            least = before.prompt_tokens + before.output_tokens - 1 - (16 if engine == "vllm" else 0)
            assert text or record.cached_tokens >= least
    hashes = [record.answer_hash for record in records if record.turn < 3]
    assert clock == "virtual" or (None not in hashes and len(set(hashes)) > 1)


@pytest.mark.emulated
@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_failed_turn_ends_conversation_and_counts_later_turns(run, pytester, clock):
    suite = SUITE.format(engine="vllm", context="max_model_len", text=False).replace(
        '"error_rate == 0"', '"error_rate <= 99%"').replace(
        "conversations=4", "conversations=30")
    run(suite, "--emulate", "h200", "--emulate-clock", clock, "--emulate-fault", "truncated=10%")
    (path,) = Path(pytester.path).rglob("*.json.gz")
    records = decode(path).records
    for record in records:
        if record.after is not None:
            assert (record.outcome.value == "conversation ended") == (not records[record.after].ok)
            assert (record.sent_ns is None) == (not records[record.after].ok)
    assert 0 < sum(record.outcome.value == "conversation ended" for record in records) < 60


@pytest.mark.emulated
def test_rate_of_conversations_is_reported_beside_rate_of_requests(run, pytester):
    suite = SUITE.format(engine="vllm", context="max_model_len", text=False)
    measured = suite.replace("closed(2)", "poisson(2)").replace("import closed", "import poisson")
    result, _ = run(measured, "--emulate", "h200", "-v")
    result.stdout.fnmatch_lines(["*request_throughput * requests/s*", "*conversation_throughput * conversations/s*"])
    found = measured.replace("conversations=4", "conversations=60")[: measured.index("def test_it")] + """
def test_it(perf):
    found = perf.max_rate(vllm("llama-3.1-8b", max_model_len=4096), TALK, slo="ttft_p50 <= 60ms", precision=1)
    assert found.value("max_rate") == 3 * found.value("max_conversation_rate")
    perf.check(found, "max_conversation_rate >= 1/s", "max_rate >= 3/s")
"""
    result, _ = run(found, "--emulate", "h200", "-v")
    assert result.ret == 0, result.outlines
    result.stdout.fnmatch_lines(["PASS  test_it*/s, proven  max_conversation_rate >= 1/s"])
