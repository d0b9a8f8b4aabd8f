"""An endpoint that is measured by /v1/chat/completions."""

import json

import httpx
import pytest

from pytest_llmperf.engines.spec import endpoint
from pytest_llmperf.errors import SpecError, WrongServer
from pytest_llmperf.model.request import Request

CHAT = endpoint("http://h:1", model="m", protocol="chat")


def test_text_prompt_is_sent_as_one_user_message(make_server):
    path, body = make_server(CHAT).post(Request(0, "a b", 3, None))
    sent = json.loads(body)
    assert path == "/v1/chat/completions"
    assert sent["messages"] == [{"role": "user", "content": "a b"}]
    assert "prompt" not in sent
    assert (sent["max_tokens"], sent["stream"]) == (3, True)


def test_token_ids_in_a_chat_are_refused_with_remedy(make_server):
    with pytest.raises(SpecError, match=r"A chat takes text.*random_tokens\(…, text=True\)"):
        make_server(CHAT).post(Request(0, (1, 2), 3, 2))


def test_probe_of_a_chat_endpoint_is_a_chat(make_server, fake_engine):
    fake_engine.answers["/v1/chat/completions"] = httpx.Response(200, json={"usage": {"completion_tokens": 1}})
    make_server(CHAT).generate_one_token(1.0)
    assert fake_engine.paths == ["/v1/chat/completions"]


@pytest.mark.parametrize("status", [404, 405])
def test_missing_chat_endpoint_is_an_error_that_names_the_path(make_server, fake_engine, status):
    fake_engine.answers["/v1/chat/completions"] = httpx.Response(status)
    with pytest.raises(WrongServer, match=f"no chat endpoint: POST /v1/chat/completions answered {status}"):
        make_server(CHAT).generate_one_token(1.0)


def test_unknown_protocol_is_refused_with_the_known_protocols():
    with pytest.raises(SpecError, match=r"protocol='grpc'.*'completions', 'chat'"):
        endpoint("http://h:1", model="m", protocol="grpc")
