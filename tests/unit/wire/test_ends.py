"""Ends of answers: which finish reasons are a success, in each form of an answer."""

import json

import pytest

from pytest_llmperf.model.api import Api
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.request import Request
from pytest_llmperf.testing.scripted_transport import make_exchange
from pytest_llmperf.testing.streams import DONE, LAST_CHUNK, STREAM_HEAD, StreamShape, event, http_chunk, plain
from pytest_llmperf.wire.completions import to_record
from pytest_llmperf.wire.responses import response_ends

REQUEST = Request(0, "a b", 2, None)
USAGE = {"prompt_tokens": 8, "completion_tokens": 2}
FORMS = ("completions", "chat", "generate", "responses", "whole completions", "whole chat", "whole responses")


def streamed(events, api):
    return to_record(REQUEST, make_exchange([(0, STREAM_HEAD), *((at + 1, http_chunk(data))
                                                                 for at, data in enumerate(events)),
                                             (99, LAST_CHUNK)]), api)


def whole(message, api):
    return to_record(REQUEST, make_exchange([(5, step.data) for step in plain(200, json.dumps(message).encode())]), api)


def response(reason):
    """A response with a status, or an incomplete response with a reason."""
    ended = {"status": reason} if reason in ("completed", "failed", "in_progress") else {
        "status": "incomplete", "incomplete_details": {"reason": reason}}
    return {"object": "response", "usage": {"input_tokens": 8, "output_tokens": 2}, **ended}


def answer(form, reason, dialect="openai", ends=()):
    """The record of an answer of two tokens that ends for this reason."""
    protocol = form.split()[-1] if form != "generate" else "completions"
    api = Api(protocol, not form.startswith("whole"), dialect, ends=ends)
    if form == "responses":
        delta = event({"type": "response.output_text.delta", "delta": " x"})
        kind = response(reason)["status"]
        return streamed([delta, delta, event({"type": f"response.{kind}", "response": response(reason)})], api)
    if form == "whole responses":
        part = {"type": "output_text", "text": " x x", "annotations": []}
        return whole(response(reason) | {"output": [{"type": "message", "content": [part]}]}, api)
    if form == "generate":
        metas = [{"prompt_tokens": 8, "completion_tokens": n, "finish_reason": {"type": reason} if n == 2 else None}
                 for n in (1, 2)]
        return streamed([*[event({"text": "x", "meta_info": meta}) for meta in metas], DONE], api)
    if form.startswith("whole"):
        content = {"message": {"content": " x x"}} if protocol == "chat" else {"text": " x x"}
        return whole({"choices": [{"index": 0, **content, "finish_reason": reason}], "usage": USAGE}, api)
    events = StreamShape((1, 1), chat=protocol == "chat", continuous_usage=dialect == "vllm").events()
    return streamed([data.replace(b'"length"', json.dumps(reason).encode()) for data in events], api)


BAD = ("abort", "error", "content_filter", "timeout", "repetition", "cancelled")


@pytest.mark.parametrize("reason", BAD)
@pytest.mark.parametrize("form", FORMS)
def test_end_without_success_fails_the_request_and_names_the_remedy(form, reason):
    record = answer(form, reason)
    assert record.outcome is Outcome.UNSUCCESSFUL_END
    assert f'ended with "{reason}"' in record.detail
    assert f'endpoint(…, ends=("{reason}",))' in record.detail


@pytest.mark.parametrize("form", FORMS)
def test_end_that_the_endpoint_accepts_is_a_success(form):
    assert answer(form, "content_filter", ends=("content_filter", "eos_token")).outcome is Outcome.OK


@pytest.mark.parametrize("form", [form for form in FORMS if "responses" not in form])
@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "function_call"])
def test_usual_end_is_a_success(form, reason):
    assert answer(form, reason).outcome is Outcome.OK


@pytest.mark.parametrize(("reason", "outcome"), [
    ("completed", Outcome.OK), ("max_output_tokens", Outcome.OK), ("in_progress", Outcome.UNSUCCESSFUL_END),
    ("failed", Outcome.UNSUCCESSFUL_END), ("stop", Outcome.UNSUCCESSFUL_END),
])
def test_status_of_a_response_decides_the_outcome(reason, outcome):
    assert answer("whole responses", reason).outcome is outcome


@pytest.mark.parametrize("form", ["completions", "chat", "generate"])
def test_aborted_answer_of_full_length_is_a_failed_request(form):
    assert answer(form, "abort", dialect="vllm").outcome is Outcome.UNSUCCESSFUL_END


def test_sglang_finish_reason_as_an_object_is_read_in_a_chat():
    assert answer("chat", {"type": "stop", "matched": 2}).outcome is Outcome.OK
    assert 'ended with "abort" (no memory)' in answer("chat", {"type": "abort", "message": "no memory"}).detail


@pytest.mark.parametrize("reason", ["", None, False, {}])
def test_empty_finish_reason_leaves_stream_truncated(reason):
    assert answer("chat", reason).outcome is Outcome.TRUNCATED


def test_aborted_second_answer_of_a_request_fails_the_request():
    choices = [{"index": at, "text": "a", "finish_reason": reason} for at, reason in enumerate(("stop", "abort"))]
    usage = event({"choices": [], "usage": USAGE})
    api = Api(dialect="openai", fields=(("n", "2"),))
    assert streamed([*[event({"choices": [choice]}) for choice in choices], usage, DONE],
                    api).outcome is Outcome.UNSUCCESSFUL_END
    whole_api = Api("completions", False, "openai", fields=(("n", "2"),))
    assert whole({"choices": choices, "usage": USAGE}, whole_api).outcome is Outcome.UNSUCCESSFUL_END


@pytest.mark.parametrize("end", [
    b"data:  [DONE]\n\n", b"data: [DONE] \n\n", b"data:[DONE]\n\n", b"data: [DONE]\t\r\n\r\n",
])
def test_done_with_white_space_ends_the_stream(end):
    assert streamed([*StreamShape((1, 1)).events()[:-1], end], Api()).ok


@pytest.mark.parametrize("empty", [None, {}, [], False, "", {"code": None, "message": ""}])
@pytest.mark.parametrize("place", ["event", "choice"])
def test_empty_error_is_no_error(empty, place):
    def with_error(data):
        message = json.loads(data.removeprefix(b"data: "))
        target = message if place == "event" or not message["choices"] else message["choices"][0]
        return event(message | {"error": empty}) if target is message else event(
            message | {"choices": [target | {"error": empty}]})
    events = StreamShape((1, 1), chat=True).events()
    assert streamed([*map(with_error, events[:-1]), DONE], Api("chat")).ok


@pytest.mark.parametrize("error", [{"code": 502, "message": "upstream died"}, "upstream died", ["upstream died"]])
@pytest.mark.parametrize("reason", ["error", "stop"])
def test_error_of_a_choice_fails_the_request(error, reason):
    choice = {"index": 0, "delta": {}, "finish_reason": reason, "error": error}
    record = streamed([*StreamShape((1, 1), chat=True).events()[:-2], event({"choices": [choice]}), DONE], Api("chat"))
    assert record.outcome is Outcome.ERROR_IN_STREAM
    assert "upstream died" in record.detail


@pytest.mark.parametrize("said", [{"detail": "Rate limit"}, {"message": "Rate limit", "code": 429},
                                  {"base_resp": {"status_code": 1002, "status_msg": "Rate limit"}, "choices": None}])
def test_truncated_stream_detail_contains_message_of_service(said):
    record = streamed([event(said), DONE], Api("chat"))
    assert record.outcome is Outcome.TRUNCATED
    assert "the service says {" in record.detail
    assert "Rate limit" in record.detail


@pytest.mark.parametrize(("response", "kind", "reasons"), [
    ({"status": "completed"}, "completed", ["completed"]), ({}, "completed", ["completed"]), ({}, "", []),
    ({"status": "completed"}, "failed", ["failed"]), ({"status": "incomplete"}, "completed", ["incomplete"]),
    ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "", ["max_output_tokens"]),
])
def test_response_ends_by_event_then_status_then_reason(response, kind, reasons):
    assert [end.reason for end in response_ends(response, kind)] == reasons
