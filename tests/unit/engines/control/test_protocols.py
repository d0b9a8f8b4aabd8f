"""Endpoints by protocol and dialect: the bodies of their requests, and the probe with its refusals."""

import json

import httpx
import pytest

from pytest_llmperf.engines.control.identity import check_identity
from pytest_llmperf.engines.endpoint.probe import probe
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.errors import EngineError, SpecError, WrongServer
from pytest_llmperf.model.request import Request
from pytest_llmperf.testing.streams import DONE, StreamShape, error_event

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "responses": "/v1/responses"}
PROTOCOLS = pytest.mark.parametrize("protocol", PATHS)
TEXT = Request(0, "a b", 30, None)


def spec(**options):
    return endpoint("http://h:1", model="m", **options)


def sent(make_server, request=TEXT, **options):
    path, body = make_server(spec(**options)).post(request)
    return path, json.loads(body)


def stream(**options):
    return httpx.Response(200, content=b"".join(StreamShape((1,), **options).events()))


@PROTOCOLS
def test_dialect_vllm_sends_fields_that_force_length(make_server, protocol):
    path, body = sent(make_server, protocol=protocol)
    assert path == PATHS[protocol]
    assert body["ignore_eos"] is True
    assert body.get("min_tokens") == (None if protocol == "responses" else 30)
    assert body["stream"] is True


@pytest.mark.parametrize(("protocol", "prompt"), [
    ("completions", {"prompt": "a b"}), ("chat", {"messages": [{"role": "user", "content": "a b"}]}),
    ("responses", {"input": "a b"}),
])
@pytest.mark.parametrize("dialect", ["openai", "basic"])
@pytest.mark.parametrize("streamed", [True, False])
def test_other_dialects_have_standard_fields_alone(make_server, protocol, prompt, dialect, streamed):
    _, body = sent(make_server, protocol=protocol, dialect=dialect, stream=streamed)
    length = {("responses", "openai"): "max_output_tokens", ("responses", "basic"): "max_output_tokens",
              ("chat", "openai"): "max_completion_tokens"}.get((protocol, dialect), "max_tokens")
    expected = {"model": "m", **prompt, length: 30, "temperature": 0, "stream": streamed}
    if protocol == "responses":
        expected["store"] = False
    elif streamed and dialect == "openai":
        expected["stream_options"] = {"include_usage": True}
    assert body == expected


def test_fields_are_added_and_left_out(make_server):
    _, body = sent(make_server, protocol="chat", fields={"temperature": None, "reasoning_effort": "low"})
    assert body["reasoning_effort"] == "low"
    assert "temperature" not in body


def test_length_is_not_forced_without_a_forcing_field():
    assert spec().api.forces_length
    assert not spec(fields={"ignore_eos": None}).api.forces_length
    assert not spec(dialect="openai").api.forces_length


@pytest.mark.parametrize("options", [{"protocol": "chat"}, {"protocol": "responses"}, {"text": True}])
def test_token_ids_become_a_word_each_where_text_is_sent(make_server, options):
    shared, longer = make_server(spec(**options)).as_sent([Request(0, (7, 8), 3, 2), Request(1, (7, 8, 9), 3, 3)])
    assert len(shared.prompt.split()) == 2
    assert longer.prompt.startswith(shared.prompt + " ")
    assert (shared.prompt_tokens, longer.prompt_tokens) == (None, None)
    assert make_server(spec()).as_sent([Request(0, (7, 8), 3, 2)])[0].prompt == (7, 8)


@pytest.mark.parametrize(("options", "words"), [
    ({"protocol": "grpc"}, "protocol='grpc'.*'completions', 'chat', 'responses'"),
    ({"dialect": "tgi"}, "dialect='tgi'.*'vllm', 'openai', 'basic'"),
    ({"stream": 1}, "stream=1.*True or False"), ({"text": 1}, "text=1.*True or False"),
    ({"tokenizer": 1}, "tokenizer=1.*as text"),
    ({"fields": ["a"]}, "fields=….*FIELD"),
    ({"fields": {"max_tokens": 5}}, "'max_tokens'.*output= of the workload"),
    ({"fields": {"a": float("nan")}}, "fields=….*JSON"),
    ({"fields": {"api_key": "canary-key-7b6a5948"}}, "a test must not contain a key"),
])
def test_invalid_argument_of_an_endpoint_is_refused(options, words):
    with pytest.raises(SpecError, match=words) as refusal:
        spec(**options)
    assert "canary" not in str(refusal.value)


def test_spec_shows_values_beside_the_default():
    shown = str(spec(protocol="chat", stream=False, dialect="openai", fields={"top_p": 0.5, "temperature": None}))
    assert "protocol='chat', stream=False, dialect='openai', fields={\"temperature\": null, \"top_p\": 0.5}" in shown
    assert str(spec()) == "endpoint('http://h:1', model='m')"


ANSWERS = {
    ("completions", True): stream(),
    ("chat", True): stream(chat=True),
    ("responses", True): httpx.Response(200, content=(
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":" x"}\n\n'
        b'event: response.completed\ndata: {"type":"response.completed","response":{"object":"response",'
        b'"status":"completed","usage":{"input_tokens":3,"output_tokens":1}}}\n\n')),
    ("completions", False): httpx.Response(200, json={
        "choices": [{"text": " x", "finish_reason": "length"}], "usage": {"completion_tokens": 1}}),
    ("chat", False): httpx.Response(200, json={
        "choices": [{"message": {"content": " x"}, "finish_reason": "length"}], "usage": {"completion_tokens": 1}}),
    ("responses", False): httpx.Response(200, json={
        "object": "response", "status": "completed", "usage": {"input_tokens": 3, "output_tokens": 1},
        "output": [{"type": "message", "content": [{"type": "output_text", "text": " x"}]}]}),
}


@pytest.mark.parametrize(("protocol", "streamed"), ANSWERS)
def test_probe_has_protocol_and_stream_of_the_test(make_server, fake_engine, protocol, streamed):
    fake_engine.answers[PATHS[protocol]] = ANSWERS[protocol, streamed]
    probe(make_server(spec(protocol=protocol, stream=streamed)), TEXT, 1.0)
    assert fake_engine.paths == [PATHS[protocol]]


def refused(make_server, fake_engine, answer, request=TEXT, **options):
    """The message of a probe that the service answers so."""
    fake_engine.answers[PATHS[options.get("protocol", "completions")]] = answer
    with pytest.raises(EngineError) as refusal:
        probe(make_server(spec(**options)), request, 1.0)
    assert isinstance(refusal.value, WrongServer) == (answer.status_code != 200)
    return str(refusal.value)


def error(status, message):
    return httpx.Response(status, json={"error": {"message": message}})


@PROTOCOLS
@pytest.mark.parametrize("status", [401, 403])
def test_probe_names_the_refused_key(make_server, fake_engine, protocol, status):
    message = refused(make_server, fake_engine, httpx.Response(status), protocol=protocol)
    assert f"refuses us: {PATHS[protocol]} answered {status}" in message


@PROTOCOLS
@pytest.mark.parametrize("status", [404, 405])
def test_probe_names_the_absent_protocol(make_server, fake_engine, protocol, status):
    message = refused(make_server, fake_engine, httpx.Response(status), protocol=protocol)
    assert f"has no {protocol} endpoint: POST {PATHS[protocol]} answered {status}" in message
    assert "Nothing was measured. Write protocol=" in message


@pytest.mark.parametrize("detail", ["POST /m/completions not found", "no method m", "no model-m at m/x"])
def test_name_of_model_inside_another_word_leaves_absent_protocol_as_cause(make_server, fake_engine, detail):
    assert "has no chat endpoint" in refused(make_server, fake_engine, error(404, detail), protocol="chat")


@PROTOCOLS
def test_probe_names_the_model_that_is_not_served(make_server, fake_engine, protocol):
    answer = error(404, "The model `m` does not exist.")
    message = refused(make_server, fake_engine, answer, protocol=protocol)
    assert "does not serve the model 'm'" in message
    assert "/v1/models lists" in message


@pytest.mark.parametrize(("message", "options", "remedy"), [
    ("Extra inputs are not permitted: ignore_eos", {}, 'dialect="openai"), or leave the field out: fields={"ignore'),
    ("Unrecognized request argument supplied: continuous_usage_stats", {}, 'fields={"stream_options": None}'),
    ("body.stream_options: Extra inputs", {"dialect": "openai"}, 'dialect="basic"'),
    ("Unknown name 'max_completion_tokens'", {"dialect": "openai", "protocol": "chat"}, 'dialect="basic"'),
    ("Use 'max_completion_tokens' instead of max_tokens", {"dialect": "basic", "protocol": "chat"}, 'dialect="openai"'),
    ("Unsupported value: 'temperature' does not support 0", {"dialect": "openai"}, 'fields={"temperature": None}'),
    ("prompt must be a string", {}, "random_tokens(…, text=True)"),
])
@pytest.mark.parametrize("status", [400, 422])
def test_probe_names_the_refused_field_with_remedy(make_server, fake_engine, message, options, remedy, status):
    shown = refused(make_server, fake_engine, error(status, message), **options)
    assert "refuses the field" in shown
    assert f"answered {status}: " in shown
    assert remedy in shown


def test_probe_names_a_whole_answer_to_a_streamed_request(make_server, fake_engine):
    message = refused(make_server, fake_engine, ANSWERS["chat", False], protocol="chat")
    assert "write endpoint(…, stream=False)" in message


@pytest.mark.parametrize(("answer", "reason"), [
    (httpx.Response(200, text="<html>hello</html>"), "no server-sent event"), (httpx.Response(200), "ended without"),
    (httpx.Response(200, content=b": ping\n\n" * 100 + error_event("dead") + DONE), "200 (500: dead)"),
    (httpx.Response(200, content=b"".join(StreamShape((1, 1, 1)).events())), "usage says 3 output tokens instead of 1"),
])
def test_answer_without_token_is_an_engine_error_with_the_reason(make_server, fake_engine, answer, reason):
    message = refused(make_server, fake_engine, answer)
    assert "is up but generates nothing" in message
    assert reason in message


@pytest.mark.parametrize(("options", "answer"), [
    ({}, httpx.Response(200, content=b"".join(StreamShape((1,)).events()).replace(b'"length"', b'"abort"'))),
    ({"dialect": "openai", "protocol": "chat", "stream": False}, httpx.Response(200, json={
        "choices": [{"message": {"content": " x"}, "finish_reason": "abort"}], "usage": {"completion_tokens": 1}})),
])
def test_probe_names_an_end_without_success(make_server, fake_engine, options, answer):
    message = refused(make_server, fake_engine, answer, **options)
    assert 'ended with "abort"' in message
    assert 'endpoint(…, ends=("abort",))' in message
    probe(make_server(spec(**options, ends="abort")), TEXT, 1.0)


def test_accepted_ends_are_a_condition_of_the_measurement():
    assert spec(ends="b").api.stated == {"ends": "('b',)"} == spec(ends=["b", "b"]).api.stated
    assert repr(spec(ends=["b", "a"])) == "endpoint('http://h:1', model='m', ends=('a', 'b'))"
    assert "ends" not in repr(spec())


@pytest.mark.parametrize("ends", [7, ["stop", None], [""], {1}])
def test_ends_that_are_no_texts_are_refused(ends):
    with pytest.raises(SpecError, match="a finish reason must be a text"):
        spec(ends=ends)


def test_probe_of_several_answers_expects_a_token_of_each(make_server, fake_engine):
    fake_engine.answers[PATHS["completions"]] = httpx.Response(200, content=b"".join(StreamShape((1, 1, 1)).events()))
    probe(make_server(spec(fields={"n": 3})), TEXT, 1.0)
    assert "generates nothing" in refused(make_server, fake_engine, stream(), fields={"n": 3})


def test_endpoint_without_a_list_of_models_is_measured(make_server, fake_engine):
    fake_engine.answers["/v1/models"] = httpx.Response(404)
    check_identity(make_server())
    assert "/v1/models" in fake_engine.paths


def test_probe_asks_for_sixteen_tokens_where_the_length_is_free(make_server, fake_engine):
    bodies = []

    def answer(request):
        bodies.append(json.loads(request.content))
        return stream()

    server = make_server(spec(dialect="openai"))
    server.control.client = httpx.Client(base_url=server.contact.url, transport=httpx.MockTransport(answer))
    probe(server, TEXT, 1.0)
    assert bodies[0]["max_tokens"] == 16
