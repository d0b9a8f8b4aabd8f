"""What a request asks for, and how a bad one is refused."""

import json

import pytest

from pytest_llmperf.emulator.flags.launch import machine
from pytest_llmperf.emulator.flags.sglang import sglang_launch
from pytest_llmperf.emulator.flags.vllm import vllm_launch
from pytest_llmperf.emulator.http.generation_request import read_generation_request
from pytest_llmperf.emulator.http.replies import Refusal
from pytest_llmperf.emulator.http.text import text_of, tokens_of

VLLM = vllm_launch(["serve", "tiny", "--served-model-name", "it", "--max-model-len", "1000"], machine("h200", 1), {})
SGLANG = sglang_launch(["--model-path", "tiny", "--context-length", "1000"], machine("h200", 1), {})


def ask(path="/v1/completions", launch=VLLM, **body):
    return read_generation_request(path, json.dumps(body).encode(), launch)


def refused(path="/v1/completions", launch=VLLM, raw=None, **body):
    with pytest.raises(Refusal) as refusal:
        read_generation_request(path, raw if raw is not None else json.dumps(body).encode(), launch)
    error = json.loads(refusal.value.body())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["code"], error["message"]


def test_token_id_prompt_is_used_unchanged():
    request = ask(prompt=[5, 6, 7], max_tokens=4, min_tokens=4, ignore_eos=True, temperature=0, model="it")
    assert request.prompts == ((5, 6, 7),)
    assert (request.kind, request.max_tokens, request.stream, request.salt) == ("completion", 4, False, "")


def test_every_form_of_prompt_is_accepted():
    assert ask(prompt=[[1, 2], [3]]).prompts == ((1, 2), (3,))
    first, two = ask(prompt=["one", "two"]).prompts
    assert first != two
    assert ask(prompt="some words and more").prompts == (tokens_of("some words and more", VLLM.config.shape.vocab),)
    assert ask(prompt=[1]).max_tokens == 16


def test_stream_options_are_read_from_request():
    streamed = ask(prompt=[1], stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert (streamed.stream, streamed.include_usage, streamed.continuous_usage) == (True, True, True)
    alone = ask(prompt=[1], stream=True, stream_options={"continuous_usage_stats": True}, return_token_ids=True)
    assert (alone.include_usage, alone.continuous_usage, alone.token_ids) == (False, False, True)
    assert ask(prompt=[1], cache_salt="a").salt == "a"


def test_chat_request_becomes_prompt_with_default_token_limit():
    request = ask("/v1/chat/completions", messages=[{"role": "user", "content": "Say something"}])
    assert request.kind == "chat"
    assert request.max_tokens == 1000 - request.prompt_tokens
    parts = [{"role": "user", "content": [{"type": "text", "text": "Say something"}]}]
    assert ask("/v1/chat/completions", messages=parts, max_completion_tokens=3).prompts == request.prompts
    assert ask("/v1/chat/completions", messages=parts, max_completion_tokens=3).max_tokens == 3


def test_sglang_generate_request_is_read():
    request = ask("/generate", SGLANG, input_ids=[1, 2], sampling_params={"max_new_tokens": 5}, stream=True)
    assert (request.kind, request.prompts, request.max_tokens, request.stream) == ("generate", ((1, 2),), 5, True)
    assert ask("/generate", SGLANG, text="hello").max_tokens == 128


def test_the_models_context_is_a_limit():
    assert ask(prompt=[1] * 900, max_tokens=100).max_tokens == 100
    code, message = refused(prompt=[1] * 900, max_tokens=101)
    assert code == 400
    assert "maximum context length is 1000 tokens" in message
    assert "900 input tokens" in message
    assert refused(prompt=[1] * 1000)[0] == 400


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"prompt": [1], "model": "another"}, 404),
        ({}, 400),
        ({"prompt": []}, 400),
        ({"prompt": ""}, 400),
        ({"prompt": [1, "a"]}, 400),
        ({"prompt": [10**6]}, 400),
        ({"prompt": [-1]}, 400),
        ({"prompt": [1], "max_tokens": 0}, 400),
        ({"prompt": [1], "max_tokens": 4, "min_tokens": 5}, 400),
        ({"prompt": [1], "n": 2}, 400),
        ({"prompt": [1], "logprobs": 3}, 400),
        ({"prompt": [1], "stream_options": {"include_usage": True}}, 400),
    ],
)
def test_bad_requests_are_refused(body, code):
    assert refused(**body)[0] == code


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff"])
def test_bodies_that_are_no_json_object_are_refused(raw):
    assert refused(raw=raw)[0] == 400


def test_texts_of_answers_are_the_same_tokens_again():
    for token in (0, 25, 26, 10_000, 128_255):
        assert tokens_of(text_of(token), 128_256) == (token,)
        assert len(text_of(token)) == 5
    answer = "".join(map(text_of, (5, 99, 77)))
    assert tokens_of("the question" + answer, 128_256)[-3:] == (5, 99, 77)


def test_any_text_has_tokens_below_the_vocabulary():
    text = "Ünïcödé, 漢字 and  a\n\ttab; averyveryverylongword 12345"
    tokens = tokens_of(text, 1000)
    assert all(0 <= token < 1000 for token in tokens)
    assert tokens == tokens_of(text, 1000)
    assert len(text) / 5 <= len(tokens) <= len(text)
