"""Generated text in any field of an answer, and usages that do not count it."""

import pytest

from pytest_llmperf.model.api import Api
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.request import Request
from pytest_llmperf.testing.scripted_transport import make_exchange
from pytest_llmperf.testing.streams import DONE, LAST_CHUNK, STREAM_HEAD, event, http_chunk
from pytest_llmperf.wire.chunks import read_chunk
from pytest_llmperf.wire.completions import to_record
from pytest_llmperf.wire.responses import response_chunk

PART = {"type": "text", "text": " x"}
CONTENT = {
    "content": {"content": " x"},
    "content as parts": {"content": [PART]},
    "thinking part": {"content": [{"type": "thinking", "thinking": [PART]}]},
    "function_call": {"function_call": {"arguments": " x"}},
    "name of a function": {"function_call": {"name": " x"}},
    "tool call": {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"arguments": " x"}}]},
    "custom tool": {"tool_calls": [{"index": 0, "type": "custom", "custom": {"input": " x"}}]},
    "audio transcript": {"audio": {"id": "a", "transcript": " x"}},
    "reasoning": {"reasoning": " x"},
    "reasoning twice": {"reasoning": " x", "reasoning_details": [{"type": "reasoning.text", "text": " x", "index": 0}]},
    "reasoning summary": {"reasoning_details": [{"type": "reasoning.summary", "summary": " x", "format": "f"}]},
    "thinking": {"thinking": " x"},
    "thinking_blocks": {"thinking_blocks": [{"type": "thinking", "thinking": " x", "signature": "s" * 99}]},
    "provider fields": {"reasoning_content": " x", "provider_specific_fields": {"reasoning_content": " x"}},
    "unknown": {"rationale": " x"},
    "unknown object": {"steps": [{"plan": {"draft": " x"}}]},
}
EMPTY = {
    "role": {"role": "assistant", "content": ""}, "author": {"role": "assistant", "name": "bot", "content": None},
    "call without text": {"tool_calls": [{"index": 0, "id": "c", "function": None}]},
    "audio data": {"audio": {"data": "AAAA"}},
    "signature": {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "abc"}]},
    "encrypted": {"reasoning_details": [{"type": "reasoning.encrypted", "data": "abc"}]},
    "annotations": {"annotations": [{"type": "url_citation", "url_citation": {"url": "u", "title": "t"}}]},
}


@pytest.mark.parametrize("place", ["delta", "message"])
@pytest.mark.parametrize("delta", CONTENT.values(), ids=CONTENT)
def test_text_in_any_field_of_a_delta_is_content(delta, place):
    assert read_chunk({"choices": [{"index": 0, place: {"role": "assistant", **delta}}]}).text == " x"


@pytest.mark.parametrize("delta", EMPTY.values(), ids=EMPTY)
def test_descriptions_in_a_delta_are_no_content(delta):
    assert read_chunk({"choices": [{"index": 0, "delta": delta}]}).text == ""


@pytest.mark.parametrize("choice", [
    {"text": "x"}, {"delta": {}, "text": "x"}, {"delta": None, "message": {"content": "x"}},
    {"text": "", "reasoning_content": "x"},
])
def test_text_of_a_choice_is_content(choice):
    assert read_chunk({"choices": [choice]}).text == "x"


@pytest.mark.parametrize("choice", [
    {"text": 5}, {"delta": {"content": 5}}, {"delta": "x"}, {"delta": {"reasoning": 1.5}},
])
def test_completion_text_that_is_not_a_string_is_refused(choice):
    with pytest.raises((TypeError, AttributeError)):
        read_chunk({"choices": [choice]})


def test_arguments_of_a_tool_as_an_object_are_content():
    call = {"function": {"arguments": {"type": "a"}}}
    assert read_chunk({"choices": [{"message": {"tool_calls": [call]}}]}).text == '{"type": "a"}'


@pytest.mark.parametrize(("kind", "values", "text"), [
    ("custom_tool_call_input.delta", {"delta": "x"}, "x"), ("output_audio_transcript.delta", {"delta": "x"}, "x"),
    ("output_audio.delta", {"delta": "AAAA"}, ""),
    ("reasoning.delta", {"delta": {"type": "summary_text", "text": "x"}}, "x"),
    ("output_item.added", {"item": {"type": "custom_tool_call", "name": "x", "input": ""}}, "x"),
])
def test_deltas_of_a_response_are_content(kind, values, text):
    assert response_chunk({"type": f"response.{kind}", **values}).text == text


@pytest.mark.parametrize(("item", "text"), [
    ({"type": "custom_tool_call", "id": "i", "name": "f", "input": "x"}, "fx"),
    ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "abc"}, "x"),
    ({"type": "message", "role": "assistant", "content": [
        {"type": "output_text", "text": "x", "annotations": [{"url": "u"}], "logprobs": [{"token": "x"}]}]}, "x"),
    ({"type": "code_interpreter_call", "code": "x", "outputs": [{"type": "logs", "logs": "done"}]}, "x"),
])
def test_items_of_a_whole_response_are_content(item, text):
    assert response_chunk({"object": "response", "status": "completed", "output": [item]}).text == text


REQUEST = Request(0, "a b", 8, None)


def record_of(usages, final=8, texts=None, dialect="openai", finish_usage=None):
    """The record of a chat whose chunks have these usages, a chunk per ns."""
    texts = texts or [f" w{at}" for at in range(len(usages))]
    events = [event({"choices": [{"index": 0, "delta": {"content": text}}], "usage": usage})
              for text, usage in zip(texts, usages, strict=True)]
    events.append(event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": finish_usage}))
    events += [event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": final}}), DONE]
    reads = [(0, STREAM_HEAD), *((at + 1, http_chunk(data)) for at, data in enumerate(events)), (99, LAST_CHUNK)]
    return to_record(REQUEST, make_exchange(reads), Api("chat", dialect=dialect))


def usage(count):
    return {"prompt_tokens": 8, "completion_tokens": count, "total_tokens": 8}


@pytest.mark.parametrize("in_each", [usage(0), usage(8), usage(1), usage(None), {}, [], {"prompt_tokens": 8}],
                         ids=["zero", "of the whole answer", "of the chunk", "null", "empty", "list", "prompt"])
@pytest.mark.parametrize("finish_usage", [None, usage(8)])
def test_usage_that_counts_no_chunk_does_not_outrank_text(in_each, finish_usage):
    record = record_of([in_each] * 8, finish_usage=finish_usage)
    assert (record.outcome, record.detail) == (Outcome.OK, None)
    assert record.arrivals_ns == tuple(range(1, 9))
    assert (record.chunk_tokens, record.output_tokens) == (None, 8)


def test_text_with_a_usage_of_zero_to_the_end_is_a_contradiction():
    record = record_of([usage(0)] * 8, final=0)
    assert (record.outcome, record.detail.split(";")[0]) == (
        Outcome.COUNTS_DISAGREE, "8 content chunks, usage says 0 tokens")


def test_growing_usage_counts_chunks_after_held_back_text():
    record = record_of([usage(1), usage(1), usage(5), usage(8)], texts=[" a", " b", " c d", " e f"])
    assert (record.outcome, record.chunk_tokens, record.arrivals_ns) == (Outcome.OK, (1, 4, 3), (1, 3, 4))
