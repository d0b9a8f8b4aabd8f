"""The bytes of answers have the form that vLLM and SGLang send."""

import json

import pytest

from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.flags.launch import machine
from pytest_llmperf.emulator.flags.sglang import sglang_launch
from pytest_llmperf.emulator.flags.vllm import vllm_launch
from pytest_llmperf.emulator.http.answers import DONE, error_event, events_of
from pytest_llmperf.emulator.http.generation_request import read_generation_request
from pytest_llmperf.emulator.http.text import text_of

VLLM = vllm_launch(
    ["serve", "tiny", "--served-model-name", "50%", "--enable-prompt-tokens-details"], machine("h200", 1), {}
)
SGLANG = sglang_launch(["--model-path", "tiny"], machine("h200", 1), {})
ALL = {"include_usage": True, "continuous_usage_stats": True}


def ask(path="/v1/completions", launch=VLLM, **body):
    return read_generation_request(path, json.dumps({"prompt": [1, 2, 3], "max_tokens": 3} | body).encode(), launch)


def parsed(event):
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return json.loads(event[6:])


def streamed(request, launch=VLLM, steps=((7, 8), (9,))):
    writer = events_of(request, launch, 5, 1234)
    events = writer.opening()
    sent = 0
    for ids in steps:
        sent += len(ids)
        events.append(writer.tokens(0, ids, 2, sent == sum(map(len, steps))))
    return [parsed(event) for event in events], writer.end()


def test_completion_chunk_has_vllm_fields_in_vllm_order():
    (first, last), end = streamed(ask(stream=True, stream_options=ALL, return_token_ids=True))
    assert list(first) == ["id", "object", "created", "model", "choices", "usage"]
    assert first["id"].startswith("cmpl-")
    assert (first["object"], first["created"], first["model"]) == ("text_completion", 1234, "50%")
    assert first["choices"] == [{
        "index": 0, "text": text_of(7) + text_of(8), "logprobs": None, "finish_reason": None, "stop_reason": None,
        "prompt_token_ids": [1, 2, 3], "token_ids": [7, 8],
    }]  # fmt: skip
    assert first["usage"] == {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}
    (choice,) = last["choices"]
    assert (choice["finish_reason"], choice["prompt_token_ids"], choice["token_ids"]) == ("length", None, [9])
    usage = parsed(end[0])
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2},
    }  # fmt: skip
    assert end[1:] == [DONE] == [b"data: [DONE]\n\n"]


def test_usage_is_sent_only_if_requested():
    (first, _), end = streamed(ask(stream=True))
    assert "usage" not in first
    assert end == [DONE]
    (first, _), end = streamed(ask(stream=True, stream_options={"include_usage": True}))
    assert "usage" not in first
    assert len(end) == 2


def test_cached_tokens_are_omitted_without_server_flag():
    quiet = vllm_launch(["serve", "tiny"], machine("h200", 1), {})
    _, end = streamed(ask(launch=quiet, stream=True, stream_options=ALL), quiet)
    assert "prompt_tokens_details" not in parsed(end[0])["usage"]


def test_chats_begin_with_the_role():
    request = ask("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], stream=True, stream_options=ALL)
    (role, first, last), _ = streamed(request)
    assert role["object"] == "chat.completion.chunk"
    assert role["id"].startswith("chatcmpl-")
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert role["usage"]["completion_tokens"] == 0
    assert first["choices"] == [
        {"index": 0, "delta": {"content": text_of(7) + text_of(8)}, "logprobs": None, "finish_reason": None,
         "token_ids": None}
    ]  # fmt: skip
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["stop_reason"]) == ("length", None)


def test_two_prompts_are_two_choices_of_one_stream():
    request = ask(prompt=[[1, 2], [3]], stream=True, stream_options=ALL)
    writer = events_of(request, VLLM, 0, 0)
    first = parsed(writer.tokens(1, [4], 0, False))
    assert (first["choices"][0]["index"], first["usage"]["prompt_tokens"]) == (1, 1)
    writer.tokens(0, [4, 5], 1, False)
    assert parsed(writer.end()[0])["usage"]["total_tokens"] == 6


def test_without_a_tokenizer_texts_are_empty():
    silent = vllm_launch(["serve", "tiny", "--skip-tokenizer-init"], machine("h200", 1), {})
    (first, _), _ = streamed(ask(launch=silent, stream=True), silent)
    assert first["choices"][0]["text"] == ""


def test_sglangs_own_stream_is_cumulative():
    request = ask("/generate", SGLANG, input_ids=[1, 2, 3], sampling_params={"max_new_tokens": 3}, stream=True)
    (first, last), end = streamed(request, SGLANG)
    assert first["output_ids"] == [7, 8]
    assert last["output_ids"] == [7, 8, 9]
    assert last["text"] == "".join(map(text_of, (7, 8, 9)))
    assert first["meta_info"]["finish_reason"] is None
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
    counts = [event["meta_info"]["completion_tokens"] for event in (first, last)]
    assert counts == [2, 3]
    assert (last["meta_info"]["prompt_tokens"], last["meta_info"]["cached_tokens"]) == (3, 2)
    assert end == [DONE]


def test_sglangs_incremental_stream_is_not():
    launch = sglang_launch(["--model-path", "tiny", "--incremental-streaming-output"], machine("h200", 1), {})
    request = ask("/generate", launch, input_ids=[1, 2, 3], stream=True)
    (_, last), _ = streamed(request, launch)
    assert last["output_ids"] == [9]
    assert last["meta_info"]["completion_tokens"] == 3


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_unstreamed_answer_contains_text_and_usage(path):
    body = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {}
    request = ask(path, **body)
    sequence = Sequence(0, (1, 2, 3), 3, 0, generated=3, cached_tokens=1)
    reply = events_of(request, VLLM, 1, 99).whole_of([sequence])
    (choice,) = reply["choices"]
    text = "".join(map(text_of, sequence.tokens(3, 6)))
    assert (choice["message"]["content"] if "chat" in path else choice["text"]) == text
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 3
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_stream_error_has_status_code_500():
    assert parsed(error_event())["error"]["code"] == 500
