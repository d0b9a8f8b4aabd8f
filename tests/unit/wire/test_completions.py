"""Exchanges to records: what counts as content, and every outcome."""

import json

import pytest

from pytest_llmperf.metrics import families
from pytest_llmperf.model.api import Api
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.request import Request
from pytest_llmperf.testing.scripted_transport import make_exchange, stream_exchange
from pytest_llmperf.testing.streams import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    StreamShape,
    error_event,
    event,
    http_chunk,
    plain,
)
from pytest_llmperf.wire.completions import to_record
from pytest_llmperf.wire.stream import TokenCounter

MS = 1_000_000


def request_of(output_tokens=4, prompt_tokens=8):
    return Request(0, (1,) * 8, output_tokens, prompt_tokens)


def record_of(events, *, request=None, ending=Ending.COMPLETE, end=LAST_CHUNK, **options):
    """One read per event, a millisecond apart, from 1 ms on."""
    reads = [(0, STREAM_HEAD)]
    reads += [((at + 1) * MS, http_chunk(data)) for at, data in enumerate(events)]
    reads.append((reads[-1][0], end))
    return to_record(request or request_of(), make_exchange(reads, ending=ending, **options))


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(("usage", "ids"), [(True, False), (False, True), (True, True)])
def test_complete_stream_gives_record_with_tokens_and_usage(chat, usage, ids):
    shape = StreamShape((1, 3, 2), chat=chat, continuous_usage=usage, token_ids=ids, cached_tokens=5)
    record = to_record(request_of(6), stream_exchange(shape, intended_ns=MS))
    assert (record.outcome, record.detail) == (Outcome.OK, None)
    assert record.arrivals_ns == (51 * MS, 61 * MS, 71 * MS)
    assert record.chunk_tokens == (1, 3, 2)
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (8, 6, 5)
    assert record.coalesced_chunks == 0


def native(done, reason=None, **meta):
    """An event of SGLang's /generate with cumulative text."""
    counts = {"prompt_tokens": 8, "completion_tokens": done, "cached_tokens": 5}
    return event({"text": "x" * done, "meta_info": {"finish_reason": reason, **counts, **meta}})


def test_sglang_stream_gives_record_with_tokens_and_usage():
    record = record_of([native(1), native(3), native(4, {"type": "length", "length": 4}), DONE])
    assert (record.outcome, record.detail) == (Outcome.OK, None)
    assert record.chunk_tokens == (1, 2, 1)
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (8, 4, 5)


def test_aborted_or_short_sglang_stream_is_a_failed_request():
    aborted = record_of([native(1), native(2, {"type": "abort", "message": "too long"}), DONE])
    assert aborted.outcome is Outcome.UNSUCCESSFUL_END
    assert 'ended with "abort" (too long)' in aborted.detail
    short = record_of([native(1), native(2, {"type": "length"}), DONE])
    assert short.outcome is Outcome.WRONG_LENGTH
    assert record_of([native(1), native(4), DONE]).outcome is not Outcome.OK  # it never finished


def test_counts_that_the_server_does_not_send_are_missing():
    record = to_record(request_of(6), stream_exchange(StreamShape((1, 3, 2), continuous_usage=False)))
    assert record.ok
    assert record.chunk_tokens is None
    assert record.output_tokens == 6


@pytest.mark.parametrize("chat", [False, True])
def test_empty_text_of_a_real_token_is_content(chat):
    record = to_record(request_of(), stream_exchange(StreamShape(chat=chat, text="")))
    assert record.ok
    assert len(record.arrivals_ns) == 4


@pytest.mark.parametrize("chat", [False, True])
def test_empty_text_without_counts_is_no_content(chat):
    """Any gateway can send such a chunk at once: it proves no token."""
    record = to_record(request_of(), stream_exchange(StreamShape(chat=chat, text="", continuous_usage=False)))
    assert (record.outcome, record.arrivals_ns) == (Outcome.EMPTY, ())


def test_empty_first_chunk_without_counts_is_not_the_first_content():
    shape = StreamShape(continuous_usage=False)
    empty = event({"choices": [{"index": 0, "text": "", "finish_reason": None}]})
    record = record_of([empty, *shape.events()])
    assert record.ok
    assert record.arrivals_ns[0] == 2 * MS


def test_finish_without_growth_is_not_content():
    shape = StreamShape()
    choice = {"index": 0, "text": "", "finish_reason": "length"}
    body = [data.replace(b'"length"', b"null") for data in shape.events()[:4]]
    record = record_of([*body, event({"choices": [choice], "usage": shape.usage(4)}), shape.usage_event(), DONE])
    assert record.ok
    assert len(record.arrivals_ns) == 4


@pytest.mark.parametrize("chunks", [4, 3])
def test_usage_that_comes_with_the_finish_alone_counts_no_chunk(chunks):
    """As llama.cpp's server tells it: four tokens, in as many chunks or fewer, and their number at the end."""
    shape = StreamShape((1,) * chunks, continuous_usage=False)
    body = [data.replace(b'"length"', b"null") for data in shape.events()[:chunks]]
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": shape.usage(4)}
    record = record_of([*body, event(end), DONE])
    assert (record.outcome, record.detail) == (Outcome.OK, None)
    assert (len(record.arrivals_ns), record.chunk_tokens, record.output_tokens) == (chunks, None, 4)


def test_decreasing_usage_is_named_as_cause():
    shape = StreamShape()
    first = [event({"choices": [{"index": 0, "text": "x"}], "usage": shape.usage(count)}) for count in (3, 2)]
    assert "its count of tokens fell from 3 to 2" in record_of([*first, DONE]).detail


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning"])
def test_any_kind_of_chat_content_counts(field):
    choice = {"index": 0, "delta": {field: "hm"}, "finish_reason": "length"}
    shape = StreamShape((1,), continuous_usage=False)
    record = record_of([event({"choices": [choice]}), shape.usage_event(), DONE], request=request_of(1))
    assert record.ok
    assert record.arrivals_ns == (MS,)


def test_event_has_stamp_of_completing_read():
    message = b"".join(map(http_chunk, StreamShape((1,)).events())) + LAST_CHUNK
    reads = [(1, STREAM_HEAD + message[:20]), (2, message[20:40]), (3, message[40:])]
    assert to_record(request_of(1), make_exchange(reads)).arrivals_ns == (3,)


def test_chunks_that_share_a_read_are_counted():
    first, second, third, fourth, *rest = map(http_chunk, StreamShape().events())
    reads = [(1, STREAM_HEAD), (2, first), (3, second + third), (4, fourth + b"".join(rest) + LAST_CHUNK)]
    record = to_record(request_of(), make_exchange(reads))
    assert record.ok
    assert record.arrivals_ns == (2, 3, 3, 4)
    assert record.coalesced_chunks == 1


def without(position):
    events = StreamShape(continuous_usage=False).events()
    del events[position]
    return events


@pytest.mark.parametrize(("position", "missing"), [(3, "finish_reason"), (4, "usage"), (5, "[DONE]")])
def test_missing_end_is_truncated(position, missing):
    record = record_of(without(position))
    assert record.outcome is Outcome.TRUNCATED
    assert missing in record.detail


def test_stream_without_done_is_complete_for_an_interface_without_done():
    reads = [(0, STREAM_HEAD), *((MS, http_chunk(data)) for data in without(5)), (MS, LAST_CHUNK)]
    assert to_record(request_of(), make_exchange(reads), Api(done=False)).outcome is Outcome.OK
    reads = [(0, STREAM_HEAD), *((MS, http_chunk(data)) for data in without(4)[:-1]), (MS, LAST_CHUNK)]
    assert "without usage" in to_record(request_of(), make_exchange(reads), Api(done=False)).detail


def test_missing_last_chunk_is_truncated_even_after_done():
    assert record_of(StreamShape().events(), ending=Ending.CLOSED_EARLY, end=b"").outcome is Outcome.TRUNCATED


def test_error_event_outranks_the_end_of_the_socket():
    events = [*StreamShape().events()[:2], error_event("EngineCore died\nbadly")]
    for ending in (Ending.COMPLETE, Ending.RESET):
        record = record_of([*events, DONE], ending=ending)
        assert record.outcome is Outcome.ERROR_IN_STREAM
        assert record.detail == "500: EngineCore died badly"
        assert len(record.arrivals_ns) == 2


@pytest.mark.parametrize(
    "data", [b'data: {"object":"error","message":"no"}\n\n', b'event: error\ndata: {"message":"no"}\n\n']
)
def test_other_error_events_make_request_failed(data):
    record = record_of([data, DONE])
    assert record.outcome is Outcome.ERROR_IN_STREAM
    assert "no" in record.detail


def test_complete_stream_without_content_is_empty():
    choice = {"index": 0, "text": "", "finish_reason": "stop"}
    shape = StreamShape(())
    record = record_of([event({"choices": [choice], "usage": shape.usage(0)}), shape.usage_event(), DONE])
    assert record.outcome is Outcome.EMPTY


@pytest.mark.parametrize(
    ("shape", "request_", "words"),
    [
        (StreamShape((1, 1)), request_of(4), "2 output tokens instead of 4"),
        (StreamShape((1, 1)), request_of(1), "2 output tokens instead of 1"),
        (StreamShape((1,), prompt_tokens=9), request_of(1), "9 prompt tokens instead of 8"),
    ],
)
def test_wrong_token_count_makes_request_failed(shape, request_, words):
    record = to_record(request_, stream_exchange(shape))
    assert record.outcome is Outcome.WRONG_LENGTH
    assert words in record.detail


def test_prompt_of_unknown_length_is_not_checked():
    assert to_record(request_of(1, None), stream_exchange(StreamShape((1,), prompt_tokens=9))).ok


def test_usage_that_contradicts_the_token_ids_is_caught():
    shape = StreamShape((1, 1), continuous_usage=False, token_ids=True)
    record = record_of([*shape.events()[:2], StreamShape((4,)).usage_event(), DONE])
    assert record.outcome is Outcome.COUNTS_DISAGREE
    assert "the chunks bring 2 tokens, usage says 4" in record.detail


def test_usage_below_the_number_of_chunks_is_caught():
    shape = StreamShape((1,) * 6, continuous_usage=False)
    record = record_of([*shape.events()[:6], StreamShape((4,)).usage_event(), DONE])
    assert record.outcome is Outcome.COUNTS_DISAGREE
    assert "6 content chunks" in record.detail


def without_growth(text, *, finish=None):
    """A chunk with text after which the usage still says four tokens."""
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return event({"choices": [choice], "usage": StreamShape().usage(4)})


@pytest.mark.parametrize(("texts", "words"), [
    ([" a", " b", " c"], "3 chunks bring 6 characters of text beyond the 4 tokens that usage says"),
    (["x" * 129], "1 chunks bring 129 characters of text beyond the 4 tokens"),
])
def test_text_beyond_the_counted_tokens_is_caught(texts, words):
    shape = StreamShape()
    record = record_of([*shape.events()[:4], *map(without_growth, texts), *shape.events()[4:]])
    assert record.outcome is Outcome.COUNTS_DISAGREE
    assert words in record.detail


def test_late_text_without_growing_usage_keeps_record_valid():
    shape = StreamShape()
    body = [data.replace(b'"length"', b"null") for data in shape.events()[:4]]
    record = record_of([*body, without_growth(" end", finish="length"), *shape.events()[4:]])
    assert (record.outcome, len(record.arrivals_ns)) == (Outcome.OK, 4)


@pytest.mark.parametrize("continuous", [False, True])
def test_more_text_than_the_tokens_of_the_usage_can_have_is_caught(continuous):
    long = StreamShape(text="x" * 129, continuous_usage=continuous)
    record = to_record(request_of(), stream_exchange(long))
    assert record.outcome is Outcome.COUNTS_DISAGREE
    assert "516 characters of text, usage says 4 tokens (of at most 128 characters)" in record.detail
    assert to_record(request_of(), stream_exchange(StreamShape(text="x" * 128, continuous_usage=continuous))).ok


def test_events_after_done_are_caught():
    events = StreamShape().events()
    assert "1 events follow [DONE]" in record_of([*events, events[0]]).detail
    assert record_of([*events, DONE, b": a comment" + bytes([10, 10])]).ok


@pytest.mark.parametrize(("model", "names"), [("m", ("m",)), (None, ()), ("", ())])
def test_names_of_models_are_kept_once(model, names):
    assert to_record(request_of(), stream_exchange(StreamShape(model=model))).models == names


def test_name_of_a_model_in_one_chunk_is_seen():
    first, *rest = StreamShape(model="m").events()
    record = record_of([first, *[data.replace(b'"m"', b'"other"', 1) for data in rest[:1]], *rest[1:]])
    assert record.models == ("m", "other")


def test_endless_names_of_models_are_limited():
    """A stream may give another name of any length in each event."""
    names = [event({"model": f"{number}-{'x' * 600}", "choices": []}) for number in range(70)]
    record = record_of([*names, *StreamShape().events()])
    assert record.ok
    assert [len(name) for name in record.models] == [512] * 64


def test_name_of_a_model_that_is_no_text_is_malformed():
    record = record_of([event({"model": 7, "choices": []}), DONE])
    assert record.outcome is Outcome.MALFORMED


@pytest.mark.parametrize("bad", [b"{oops", b"[1]", b'"text"', b'{"choices":[1]}', b'{"choices":7}', b"[" * 100_000])
def test_malformed_event_makes_request_failed_with_first_bytes(bad):
    record = record_of([*StreamShape().events()[:1], b"data: " + bad + b"\n\n", DONE])
    assert record.outcome is Outcome.MALFORMED
    assert repr(bad[:200]) in record.detail
    assert len(record.arrivals_ns) == 1


@pytest.mark.parametrize("count", ["4", 4.0, True, [4]])
def test_usage_that_is_no_number_is_malformed(count):
    events = StreamShape(continuous_usage=False).events()[:-2]
    usage = event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": count}})
    record = record_of([*events, usage, DONE])
    assert record.outcome is Outcome.MALFORMED
    assert "not a JSON completion chunk" in record.detail


@pytest.mark.parametrize("count", [-1, 10**25, 10**9 + 1])
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens", "cached_tokens"])
def test_impossible_count_in_usage_is_malformed_and_shown(name, count):
    counts = {"prompt_tokens": 8, "completion_tokens": 4}
    counts |= {"prompt_tokens_details": {name: count}} if name == "cached_tokens" else {name: count}
    events = StreamShape(continuous_usage=False).events()[:-2]
    record = record_of([*events, event({"choices": [], "usage": counts}), DONE])
    assert record.outcome is Outcome.MALFORMED
    assert record.detail == f"usage counts {count} tokens, and 0 to 1000000000 are possible"
    assert record.cached_tokens is None


def test_more_cached_than_prompt_tokens_is_wrong_length():
    record = record_of(StreamShape(cached_tokens=9).events())
    assert record.outcome is Outcome.WRONG_LENGTH
    assert record.detail == "usage says 9 cached tokens of 8 prompt tokens"


def test_impossible_count_of_native_answer_is_malformed():
    meta = {"prompt_tokens": 8, "completion_tokens": 1, "cached_tokens": 10**25, "finish_reason": {"type": "length"}}
    assert record_of([event({"text": "a", "meta_info": meta}), DONE]).outcome is Outcome.MALFORMED


def test_usage_that_counts_down_is_malformed():
    shape = StreamShape((3, 1))
    events = shape.events()
    assert record_of([events[1], events[0]]).outcome is Outcome.MALFORMED


@pytest.mark.parametrize(("status", "headers", "outcome", "words", "reason"), [
    (500, {}, Outcome.HTTP_STATUS, "HTTP 500: b'{}'", "HTTP 500"),
    (503, {}, Outcome.HTTP_STATUS, "HTTP 503: b'{}'", "HTTP 503"),
    (429, {"retry_after": "7"}, Outcome.RATE_LIMITED, "Retry-After: 7", "rate limited (HTTP 429)"),
    (503, {"retry_after": "7"}, Outcome.RATE_LIMITED, "Retry-After: 7", "rate limited (HTTP 503 with Retry-After)"),
    (307, {"location": "http://elsewhere/"}, Outcome.HTTP_STATUS, "redirect to http://elsewhere/ not followed",
     "HTTP 307"),
    (204, {}, Outcome.HTTP_STATUS, "HTTP 204", "HTTP 204"),
])  # fmt: skip
def test_other_http_status_makes_request_failed_with_reason(status, headers, outcome, words, reason):
    body = b"" if status == 204 else b"{}"
    reads = [(1, step.data) for step in plain(status, body, **headers)]
    record = to_record(request_of(), make_exchange(reads))
    assert record.outcome is outcome
    assert words in record.detail
    assert record.reason == reason


@pytest.mark.parametrize("end", [b"data: [DONE]\n", b"data: [DONE]", b"data: [DONE]\r\n"])
def test_last_event_without_blank_line_is_named_with_remedy(end):
    record = record_of([*StreamShape((1, 1)).events()[:-1], end])
    assert record.outcome is Outcome.TRUNCATED
    assert "without [DONE]" in record.detail
    assert "[DONE]' has no blank line behind it" in record.detail
    assert "write a blank line after each event" in record.detail


def test_json_where_a_stream_was_asked_for_is_malformed():
    reads = [(1, step.data) for step in plain(200, b'{"choices":[]}')]
    record = to_record(request_of(), make_exchange(reads))
    assert record.outcome is Outcome.MALFORMED
    assert "no server-sent event" in record.detail


def test_other_protocols_are_malformed():
    record = to_record(request_of(), make_exchange([(1, b"SSH-2.0-x\r\n")], ending=Ending.CLOSED_EARLY))
    assert record.outcome is Outcome.MALFORMED
    assert "SSH-2.0" in record.detail


@pytest.mark.parametrize(("ending", "outcome"), [
    (Ending.CONNECT_FAILED, Outcome.NO_CONNECTION),
    (Ending.STALE, Outcome.STALE),
    (Ending.CANCELLED, Outcome.CANCELLED),
    (Ending.NOT_SENT, Outcome.CANCELLED),
    (Ending.RESET, Outcome.RESET),
    (Ending.CLOSED_EARLY, Outcome.TRUNCATED),
    (Ending.CONNECT_TIMEOUT, Outcome.TIMEOUT),
    (Ending.FIRST_BYTE_TIMEOUT, Outcome.TIMEOUT),
    (Ending.IDLE_TIMEOUT, Outcome.TIMEOUT),
    (Ending.TOTAL_TIMEOUT, Outcome.TIMEOUT),
    (Ending.TOO_LARGE, Outcome.MALFORMED),
])  # fmt: skip
def test_each_ending_of_exchange_has_expected_outcome(ending, outcome):
    record = to_record(request_of(), make_exchange([], ending=ending, error="why"))
    assert record.outcome is outcome
    assert record.detail.startswith(f"{ending.value}: why")


def test_every_ending_is_mapped():
    for ending in Ending:
        assert not to_record(request_of(), make_exchange([], ending=ending)).ok


def test_partial_answer_keeps_arrivals():
    record = record_of(StreamShape().events()[:2], ending=Ending.RESET, end=b"")
    assert record.outcome is Outcome.RESET
    assert record.arrivals_ns == (MS, 2 * MS)
    assert "after 2 content chunks" in record.detail


def test_invalid_utf8_is_flagged_and_no_failure():
    shape = StreamShape(text="~", continuous_usage=False)
    record = record_of([data.replace(b"~", b"\xff") for data in shape.events()])
    assert record.ok
    assert record.replaced_text


def test_comments_and_empty_data_are_ignored():
    events = StreamShape().events()
    record = record_of([b": ping\n\n", b"data:\n\n", *events])
    assert record.ok
    assert record.arrivals_ns[0] == 3 * MS


def test_record_contains_facts_of_request_and_schedule():
    request = Request(3, (1,) * 8, 4, 8, tag="stream")
    record = to_record(request, stream_exchange(StreamShape(), index=3, intended_ns=5, sent_ns=7))
    assert (record.index, record.intended_ns, record.sent_ns, record.tag) == (3, 5, 7, "stream")
    assert (record.asked_output_tokens, record.asked_prompt_tokens) == (4, 8)


def test_scripted_event_has_fields_of_vllm_event():
    first = json.loads(StreamShape(model="m").events()[0].removeprefix(b"data: "))
    assert {"id", "object", "created", "model", "choices", "usage"} <= set(first)


def test_stream_of_far_more_chunks_than_tokens_is_read_no_further():
    request = Request(0, (1, 2, 3), 4, 3)
    unending = STREAM_HEAD + http_chunk(event({"choices": [{"text": "a"}]}) * 50_000)
    record = to_record(request, make_exchange([(5, unending)]))
    assert record.outcome is Outcome.MALFORMED
    assert "more than 1008 content chunks" in record.detail
    assert len(record.arrivals_ns) == 1009


TWO_ANSWERS = Api(fields=(("n", "2"),))


def choice_event(index, text, counted, finish=None):
    """An event of one of several answers, with the usage of this answer so far, as vLLM sends it."""
    return event({"choices": [{"index": index, "text": text, "finish_reason": finish}],
                  "usage": {"prompt_tokens": 8, "completion_tokens": counted, "total_tokens": 8 + counted}})


def two_answers(total=6):
    steps = [choice_event(index, f"w{step}", step, "length" if step == 3 else None)
             for step in (1, 2, 3) for index in (0, 1)]
    return [*steps, event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": total}}), DONE]


def record_of_two(events):
    reads = [(0, STREAM_HEAD), *((10_000_000 * (1 + at // 2) + at % 2, http_chunk(data))
                                 for at, data in enumerate(events[:-2])),
             (40_000_000, b"".join(map(http_chunk, events[-2:])) + LAST_CHUNK)]
    return to_record(request_of(output_tokens=3), make_exchange(reads), TWO_ANSWERS)


def test_two_answers_of_a_request_are_counted_together_and_timed_by_step():
    record = record_of_two(two_answers())
    assert (record.outcome, record.detail) == (Outcome.OK, None)
    assert record.arrivals_ns == (10_000_000, 20_000_000, 30_000_000)
    assert record.chunk_tokens == (2, 2, 2)
    assert (record.output_tokens, record.asked_output_tokens, record.coalesced_chunks) == (6, 6, 0)
    assert families.tpot(record) == (10_000_000,)


@pytest.mark.parametrize("chat", [True, False])
def test_index_that_counts_tokens_leaves_one_answer_of_several_chunks(chat):
    """As GuideLLM's mock server sends its completions: the index of the choice is the number of the token."""
    shape = StreamShape(chat=chat, continuous_usage=False)
    chunks = [event({"choices": [{"index": at, "delta": {"content": "a"}} if chat else {"index": at, "text": "a"}]})
              for at in range(4)]
    end = event({"choices": [{"index": 3, "text": "", "finish_reason": "stop"}]})
    record = record_of([*chunks, end, shape.usage_event(), DONE])
    assert (record.outcome, len(record.arrivals_ns), record.output_tokens) == (Outcome.OK, 4, 4)


def test_missing_tokens_of_second_answer_are_found():
    assert record_of_two(two_answers(total=5)).outcome is Outcome.COUNTS_DISAGREE
    lacking = [each for at, each in enumerate(two_answers(total=5)) if at != 5]
    record = record_of_two(lacking)
    assert (record.outcome, "finish_reason" in record.detail) == (Outcome.TRUNCATED, True)


@pytest.mark.parametrize("counted", [True, False])
def test_token_counter_counts_all_answers_of_a_request(counted):
    counter = TokenCounter(answers=2)
    counter.feed(STREAM_HEAD)
    events = two_answers()[:-2]
    if not counted:
        events = [event({"choices": [{"index": at % 2, "text": f"w{at}", "finish_reason": None}]}) for at in range(6)]
    assert [counter.feed(http_chunk(data)) for data in events] == [1, 2, 3, 4, 5, 6]
