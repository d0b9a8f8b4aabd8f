"""Completions, chat and Responses, streamed and whole, of an emulated service, measured by a whole session."""

import json

import pytest

from pytest_llmperf import Verdict, closed, endpoint, shared_prefix
from pytest_llmperf.errors import SpecError, WrongServer
from pytest_llmperf.results.sentences import basis_text

pytestmark = pytest.mark.emulated
QUESTIONS = shared_prefix(prefix=64, suffix=(8, 16), output=8, groups=2, arrivals=closed(4), requests=24)
ENGINE = ("serve", "tiny", "--served-model-name", "m", "--max-model-len", "4096", "--enable-prompt-tokens-details")
PROTOCOLS = ("completions", "chat", "responses")


def verdicts(perf, measured, *slos):
    return [result.verdict for result in perf.check(measured, *slos)]


def test_each_protocol_is_measured_streamed_and_whole(emulate, perf):
    server = emulate(engine=ENGINE)
    for protocol in PROTOCOLS:
        for stream in (True, False):
            spec = endpoint(server.url, model="m", protocol=protocol, stream=stream, text=True)
            measured = perf.measure(spec, QUESTIONS, runs=1)
            metrics = measured.metrics[0]
            assert verdicts(perf, measured, "error_rate == 0", "output_throughput >= 1/s") == [Verdict.PASS] * 2, spec
            assert {record.output_tokens for record in measured.runs[0].records} == {8}
            assert (metrics.value("ttft_p50") is None, metrics.value("tpot_p50") is None) == (not stream,) * 2
            assert metrics.value("e2el_p50") > 0


def test_tokenizer_counts_a_service_without_counters(emulate, perf, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="pip install tokenizers")
    words = [first + second for first in "bcdfghjklm" for second in ("al", "el", "il", "ol", "ul", "an", "en", "in")]
    vocabulary = {"[UNK]": 0} | {word: number for number, word in enumerate(words, 1)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    spec = endpoint(emulate(engine=ENGINE).url, model="m", protocol="responses", metrics=[], tokenizer=".")
    measured = perf.measure(spec, QUESTIONS, runs=1)
    (result,) = perf.check(measured, "output_throughput >= 1/s")
    assert result.verdict is Verdict.PASS
    assert "token counts by tokenizer ." in basis_text(result)
    assert {record.text_tokens for record in measured.runs[0].records} == {8}


def test_slo_that_whole_answers_lack_is_refused_before_anything_is_sent(perf):
    spec = endpoint("http://127.0.0.1:9", model="m", stream=False)  # nothing listens there
    with pytest.raises(SpecError, match=r"ttft(_p50)? needs streamed answers.*Nothing was sent"):
        perf.measure(spec, QUESTIONS, until="ttft_p50 <= 1s")
    with pytest.raises(SpecError, match=r"tpot(_p99)? needs streamed answers"):
        perf.max_rate(spec, QUESTIONS, slo="tpot_p99 <= 1s")


def test_model_that_is_not_served_is_named_before_load(emulate, perf):
    spec = endpoint(emulate(engine=ENGINE).url, model="other", protocol="chat")
    with pytest.raises(WrongServer, match=r"serves m, not 'other': .* Write model='m' or correct"):
        perf.measure(spec, QUESTIONS)


def test_responses_of_the_emulator_have_events_and_order_of_vllm(emulate, client):
    body = {"model": "m", "input": "hello", "max_output_tokens": 3, "stream": True}
    with client.stream("POST", f"{emulate(engine=ENGINE).url}/v1/responses", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    names = [event["type"].removeprefix("response.") for event in events]
    assert names == ["created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * 3,
                     "output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [line for line in lines if line.startswith("event: ")] == [f"event: {event['type']}" for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    answer = events[-1]["response"]
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["content"][0]["text"] == "".join(event.get("delta", "") for event in events)
    assert answer["usage"]["output_tokens"] == 3
