"""Whole answers of all protocols, and streams of the Responses API, to records."""

import json

import pytest

from pytest_llmperf.metrics import measure
from pytest_llmperf.model.api import Api
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.request import Request
from pytest_llmperf.testing.scripted_transport import make_exchange
from pytest_llmperf.testing.streams import DONE, LAST_CHUNK, STREAM_HEAD, StreamShape, event, http_chunk
from pytest_llmperf.wire.completions import to_record

MS = 1_000_000
FREE, RESPONSES = Api(dialect="openai"), Api("responses")
ASKED = Request(0, "a b", 4, None)
USAGE = {"prompt_tokens": 8, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}
RESPONSE_USAGE = {"input_tokens": 8, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 5}}
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": " a b c d"}]}
CALL = {"type": "function_call", "name": "f", "arguments": "{}"}
WHOLE = {
    "completions": {"model": "m", "choices": [{"text": " a b c d", "finish_reason": "length"}], "usage": USAGE},
    "chat": {"model": "m", "choices": [{"message": {"content": " a b c d"}, "finish_reason": "stop"}], "usage": USAGE},
    "responses": {"object": "response", "model": "m", "status": "incomplete", "usage": RESPONSE_USAGE,
                  "incomplete_details": {"reason": "max_output_tokens"}, "output": [MESSAGE]},
}


def whole(body, api, *, request=ASKED, ending=Ending.COMPLETE, cut=0):
    """An answer in two reads, 5 and 9 ms after the send."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data)
    half = len(data) // 2
    reads = [(5 * MS, head + data[:half]), (9 * MS, data[half : len(data) - cut])]
    return to_record(request, make_exchange(reads, ending=ending), api)


def streamed(events, api=RESPONSES, request=ASKED):
    reads = [(0, STREAM_HEAD), *(((at + 1) * MS, http_chunk(data)) for at, data in enumerate(events))]
    return to_record(request, make_exchange([*reads, (reads[-1][0], LAST_CHUNK)]), api)


@pytest.mark.parametrize("protocol", WHOLE)
def test_whole_answer_gives_e2e_latency_and_usage(protocol):
    record = whole(WHOLE[protocol], Api(protocol, stream=False))
    assert (record.outcome, record.detail) == (Outcome.OK, None)
    assert record.arrivals_ns == (9 * MS,)
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (8, 4, 5)
    assert (record.chunk_tokens, record.models, record.whole) == (None, ("m",), True)


def test_whole_answer_without_body_is_truncated_and_no_wrong_json():
    record = whole(b"", Api("completions", stream=False))
    assert (record.outcome, record.arrivals_ns) == (Outcome.TRUNCATED, ())
    assert "JSON" not in record.detail


def test_whole_answers_have_no_latency_between_send_and_end():
    metrics = measure([whole(WHOLE["chat"], Api("chat", stream=False))] * 2)
    missing = [metrics.value(f"{name}_p50") for name in ("ttft", "itl", "itl_per_token", "tpot", "largest_stall")]
    assert missing == [None] * 5
    assert metrics.value("e2el_p50") == 9.0
    assert metrics.value("error_rate") == 0.0
    assert metrics.value("output_throughput") == pytest.approx(8 / 0.009)


@pytest.mark.parametrize(("body", "outcome"), [
    (b"[1]", Outcome.MALFORMED), (b"{oops", Outcome.MALFORMED), (b"<html>", Outcome.MALFORMED),
    ({"error": {"code": 500, "message": "dead"}}, Outcome.ERROR_IN_STREAM),
    ({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}, Outcome.EMPTY),
    ({"choices": [{"message": {"content": "x"}}], "usage": USAGE}, Outcome.TRUNCATED),
    ({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}, Outcome.TRUNCATED),
    ({**WHOLE["chat"], "usage": {"completion_tokens": 3}}, Outcome.WRONG_LENGTH),
    (b"", Outcome.TRUNCATED),
])
def test_broken_whole_answer_is_a_failed_request(body, outcome):
    assert whole(body, Api("chat", stream=False)).outcome is outcome


def test_whole_answer_that_is_cut_is_truncated():
    record = whole(WHOLE["chat"], Api("chat", stream=False), ending=Ending.CLOSED_EARLY, cut=5)
    assert record.outcome is Outcome.TRUNCATED


def test_failed_response_is_an_error():
    body = {"object": "response", "status": "failed", "output": [], "error": {"code": "server_error", "message": "no"}}
    record = whole(body, Api("responses", stream=False))
    assert (record.outcome, record.detail) == (Outcome.ERROR_IN_STREAM, "server_error: no")


def delta(kind, text):
    return event({"type": f"response.{kind}.delta", "delta": text, "item_id": "i", "output_index": 0})


def response_event(kind, **response):
    return event({"type": f"response.{kind}", "response": {"object": "response", "model": "m", **response}})


BEGIN = [response_event("created", status="in_progress", usage=None), response_event("in_progress", usage=None)]
END = response_event("completed", status="completed", usage=RESPONSE_USAGE)


def test_stream_of_responses_gives_arrivals_and_usage():
    added = event({"type": "response.output_item.added", "item": {"type": "message", "content": []}})
    done = event({"type": "response.output_text.done", "text": " a b c"})
    deltas = [delta("reasoning_text", "hm"), added, delta("output_text", " a"), delta("output_text", " b"),
              delta("function_call_arguments", "{}")]
    record = streamed([*BEGIN, *deltas, done, END])
    assert (record.outcome, record.detail) == (Outcome.OK, None)
    assert record.arrivals_ns == tuple(at * MS for at in (3, 5, 6, 7))
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (8, 4, 5)
    assert (record.chunk_tokens, record.models) == (None, ("m",))


def test_name_of_a_called_function_is_content():
    added = event({"type": "response.output_item.added", "item": CALL | {"arguments": ""}})
    record = streamed([*BEGIN, added, delta("function_call_arguments", "{}"), END])
    assert record.arrivals_ns == (3 * MS, 4 * MS)


@pytest.mark.parametrize(("end", "outcome"), [
    ([response_event("incomplete", status="incomplete", usage=RESPONSE_USAGE,
                     incomplete_details={"reason": "max_output_tokens"})], Outcome.OK),
    ([response_event("incomplete", status="incomplete", usage=RESPONSE_USAGE)], Outcome.UNSUCCESSFUL_END),
    ([response_event("incomplete", status="incomplete", usage=RESPONSE_USAGE,
                     incomplete_details={"reason": "content_filter"})], Outcome.UNSUCCESSFUL_END),
    ([response_event("cancelled", usage=RESPONSE_USAGE)], Outcome.UNSUCCESSFUL_END),
    ([event({"type": "error", "code": "x", "message": "dead"})], Outcome.ERROR_IN_STREAM),
    ([], Outcome.TRUNCATED),
    ([response_event("failed", status="failed", error={"code": "x", "message": "y"})], Outcome.ERROR_IN_STREAM),
    ([event({"type": "error", "error": {"code": 500, "message": "dead"}})], Outcome.ERROR_IN_STREAM),
    ([END, DONE], Outcome.OK),
    ([END, delta("output_text", " more")], Outcome.COUNTS_DISAGREE),
])
def test_end_of_a_stream_of_responses_decides_the_outcome(end, outcome):
    assert streamed([*BEGIN, *[delta("output_text", " a")] * 4, *end]).outcome is outcome


def test_delta_of_a_response_that_is_no_text_is_malformed():
    assert streamed([*BEGIN, event({"type": "response.output_text.delta", "delta": 7})]).outcome is Outcome.MALFORMED


@pytest.mark.parametrize(("delta", "characters"), [
    ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, 1),
    ({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}, 8),
    ({"reasoning_content": "hm", "reasoning": "hm"}, 2), ({"content": None, "reasoning": "hm"}, 2),
    ({"refusal": "no"}, 2),
])
def test_reasoning_and_tool_calls_of_a_chat_are_content(delta, characters):
    choice = {"index": 0, "delta": delta, "finish_reason": "length"}
    shape = StreamShape((1,), continuous_usage=False)
    record = streamed([event({"choices": [choice]}), shape.usage_event(), DONE], Api("chat"), Request(0, "a", 1, None))
    assert (record.outcome, record.arrivals_ns) == (Outcome.OK, (MS,))
    long = streamed([event({"choices": [choice]})] * 40 + [StreamShape((0,)).usage_event(), DONE], Api("chat"))
    assert f"{40 * characters} characters of text" in long.detail


def test_shorter_answer_is_served_where_the_length_is_not_forced():
    shape = StreamShape((1, 1), continuous_usage=False)
    assert streamed(shape.events(), FREE).ok
    assert streamed(shape.events(), Api()).outcome is Outcome.WRONG_LENGTH
    too_long = streamed(StreamShape((1,) * 5).events(), FREE)
    assert too_long.detail == "5 output tokens instead of at most 4"


def test_stream_without_usage_is_served_where_no_usage_was_asked_for():
    events = StreamShape((1, 1), continuous_usage=False).events()
    del events[-2]
    assert streamed(events, Api(dialect="basic")).ok
    assert streamed(events, FREE).outcome is Outcome.TRUNCATED
