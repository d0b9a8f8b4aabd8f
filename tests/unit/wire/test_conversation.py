"""What a server answered, read from its bytes and placed into the body of the next turn."""

import json
from functools import partial

import pytest

from pytest_llmperf.engines.control.reader import completion_body, request_body
from pytest_llmperf.engines.sglang.adapter import generate_body
from pytest_llmperf.model.api import SUCCESSFUL_ENDS, Api
from pytest_llmperf.model.request import Request
from pytest_llmperf.testing.streams import DONE, LAST_CHUNK, STREAM_HEAD, error_event, event, http_chunk
from pytest_llmperf.wire.conversation import AnswerReader, answer_part, joined, part_of

RESPONSES = Api("responses").accepted_ends


def read(*events, cut=None, answers=1, ends=SUCCESSFUL_ENDS):
    data = STREAM_HEAD + b"".join(map(http_chunk, events)) + LAST_CHUNK
    reader = AnswerReader(answers, ends)
    for start in range(0, len(data), cut or len(data)):
        reader.feed(data[start : start + (cut or len(data))])
    return reader


def completion(text, ids, finish=None, index=0):
    return event({"choices": [{"index": index, "text": text, "token_ids": ids, "finish_reason": finish}]})


def chat(content, finish=None, **delta):
    return event({"choices": [{"index": 0, "delta": {"content": content, **delta}, "finish_reason": finish}]})


def native(text, ids, tokens, finish=None):
    return event({"text": text, "output_ids": ids, "meta_info": {"completion_tokens": tokens, "finish_reason": finish}})


WHOLE = {
    "completions": (completion(" a", [7]), completion(' "b"\n', [8, 9], "length"), DONE),
    "generate, cumulative": (native(" a", [7], 1), native(' a "b"\n', [7, 8, 9], 3, {"type": "length"}), DONE),
    "generate, incremental": (native(" a", [7], 1), native(' "b"\n', [8, 9], 3, {"type": "length"}), DONE),
}


@pytest.mark.parametrize("cut", [None, 7])
@pytest.mark.parametrize("events", WHOLE.values(), ids=WHOLE)
def test_answer_has_ids_and_text_in_order(events, cut):
    reader = read(*events, cut=cut)
    assert answer_part(reader, "ids") == b"7,8,9"
    assert json.loads(b'"%b"' % answer_part(reader, "text")) == ' a "b"\n'


def test_answer_with_index_that_counts_tokens_can_be_continued():
    """As GuideLLM's mock server sends its completions: the index of the choice is the number of the token."""
    events = (completion(" a", [7]), completion(" b", [8], index=1), completion("", [], "stop", index=1), DONE)
    assert answer_part(read(*events), "ids") == b"7,8"
    assert answer_part(read(*events), "text") == b" a b"


def test_first_of_several_answers_is_continued():
    events = (completion(" a", [7]), completion(" x", [9], index=1), completion(" b", [8], "stop"),
              completion(" y", [9], "stop", index=1), DONE)
    assert answer_part(read(*events, answers=2), "ids") == b"7,8"


def test_chat_answer_becomes_message_without_reasoning():
    reader = read(chat(None, role="assistant"), chat(None, reasoning_content="hm"), chat("yes"), chat("", "stop"), DONE)
    assert json.loads(answer_part(reader, "messages")) == {"role": "assistant", "content": "yes"}


@pytest.mark.parametrize(("form", "events"), [
    ("ids", (completion("a", None, "stop"), DONE)),
    ("text", (completion("", [1], "length"), DONE)),
    ("ids", (completion("a", [1]), DONE)),
    ("ids", (completion("a", [1], "length"), error_event("gone"), DONE)),
    ("ids", (b"data: {no json\n\n", completion("a", [1], "length"), DONE)),
    ("ids", (native("", [1], 1, {"type": "abort"}), DONE)),
    ("text", (completion("a", [1], "abort"), DONE)),
    ("messages", (chat("a"), chat("", "content_filter"), DONE)),
    ("messages", (chat("a"), event({"choices": [{"delta": {}, "finish_reason": "stop", "error": {"code": 502}}]}))),
], ids=["no ids", "no text", "no finish", "error", "no json", "native abort", "abort", "filter", "error of a choice"])
def test_incomplete_answer_cannot_be_continued(form, events):
    assert answer_part(read(*events), form) is None


def whole(message, ends=SUCCESSFUL_ENDS):
    body = json.dumps(message).encode()
    reader = AnswerReader(ends=ends)
    reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return reader


def test_turn_follows_end_that_the_endpoint_accepts():
    events = completion("a", [1], "eos_token"), b"data: [DONE] \n\n"
    assert answer_part(read(*events), "text") is None
    assert answer_part(read(*events, ends=("eos_token",)), "text") == b"a"


def test_content_in_parts_can_be_continued():
    events = chat([{"type": "text", "text": "ye"}, {"type": "text", "text": "s"}]), chat("", "stop")
    assert answer_part(read(*events), "text") == b"yes"


def test_whole_answers_can_be_continued():
    completed = whole({"choices": [{"text": " ab", "token_ids": [7, 8], "finish_reason": "length"}]})
    assert answer_part(completed, "ids") == b"7,8"
    chatted = whole({"choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}]})
    assert json.loads(answer_part(chatted, "messages"))["content"] == "yes"
    assert answer_part(whole({"choices": [{"text": "a", "finish_reason": None}]}), "text") is None


@pytest.mark.parametrize(("status", "reason", "expected"), [
    ("completed", None, b"yes"), ("incomplete", "max_output_tokens", b"yes"), ("incomplete", "content_filter", None),
    ("incomplete", None, None), ("failed", None, None),
])
def test_successful_responses_can_be_continued(status, reason, expected):
    delta = {"type": "response.output_text.delta", "delta": "ye"}
    ended = {"status": status, "incomplete_details": reason and {"reason": reason}}
    events = event(delta), event(delta | {"delta": "s"}), event({"type": f"response.{status}", "response": ended})
    assert answer_part(read(*events, ends=RESPONSES), "text") == expected
    assert answer_part(read(event(delta), ends=RESPONSES), "text") is None
    content = [{"type": "output_text", "text": "yes"}]
    answer = {"object": "response", "output": [{"type": "message", "content": content}], **ended}
    assert answer_part(whole(answer, RESPONSES), "text") == expected


def test_conversation_of_responses_sends_messages():
    request = Request(0, "say", 2, None, answer_used=True)
    body = request_body(request, "m", Api(protocol="responses"))
    assert part_of(request, body).form == "messages"


def test_refusal_is_no_answer():
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\n{}")
    assert answer_part(reader, "text") is None


@pytest.mark.parametrize(("prompt", "write", "answer", "expected"), [
    ((1, 2), completion_body, b"7,8", ("prompt", [1, 2, 7, 8, 3])),
    ((1, 2), lambda request, _: generate_body(request), b"7,8", ("input_ids", [1, 2, 7, 8, 3])),
    ('say "a"', completion_body, b" b\\n", ("prompt", 'say "a" b\n more')),
    ("say", partial(request_body, api=Api("chat")), b'{"role":"assistant","content":"b"}',
     ("messages", [{"role": "user", "content": "say"}, {"role": "assistant", "content": "b"},
                   {"role": "user", "content": " more"}])),
], ids=["ids", "generate", "text", "messages"])
def test_next_body_contains_earlier_turn_and_answer(prompt, write, answer, expected):
    later = (3,) if isinstance(prompt, tuple) else " more"
    requests = Request(0, prompt, 2, None, answer_used=True), Request(1, later, 2, None, after=0, continues=True)
    (first, part), (body, own) = ((written, part_of(r, written)) for r in requests for written in [write(r, "m")])
    whole = joined(own.form, (first[part.start : part.end], answer, body[own.start : own.end]))
    name, value = expected
    assert json.loads(body[: own.start] + whole + body[own.end :])[name] == value


def test_request_outside_conversation_has_no_part():
    assert part_of(Request(0, (1,), 1, 1), b"{}") is None


def test_body_asks_for_token_ids_of_continued_turns_only():
    plain, followed = Request(0, (1,), 1, 1), Request(0, (1,), 1, 1, answer_used=True)
    assert b"return_token_ids" not in completion_body(plain, "m")
    assert json.loads(completion_body(followed, "m"))["return_token_ids"] is True
