"""Answers that are not streamed: the same contents as one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmperf.emulator.http.events import answer_id, usage_of
from pytest_llmperf.emulator.http.replies import Reply, json_reply
from pytest_llmperf.emulator.http.response_events import whole_response
from pytest_llmperf.emulator.http.text import text_of

if TYPE_CHECKING:
    from pytest_llmperf.emulator.core.sequence import Sequence
    from pytest_llmperf.emulator.flags.launch import Launch
    from pytest_llmperf.emulator.http.generation_request import GenerationRequest


def unstreamed_answer(
    ask: GenerationRequest, launch: Launch, number: int, created: int, sequences: list[Sequence]
) -> Reply:
    """The answer to a request without stream, `created` in seconds since 1970."""
    ids = [list(sequence.tokens(sequence.prompt_length, sequence.length)) for sequence in sequences]
    cached = [sequence.cached_tokens or 0 for sequence in sequences]
    if ask.kind == "generate":
        outputs = [_native(ask, launch, number, row) for row in zip(ask.prompts, ids, cached, strict=True)]
        return json_reply(outputs[0] if len(outputs) == 1 else outputs)
    if ask.kind == "response":
        text = _text(launch, ids[0])
        return json_reply(whole_response(ask, launch, number, created, text=text, tokens=len(ids[0]), cached=cached[0]))
    return json_reply(
        {
            "id": answer_id(ask, launch, number),
            "object": "chat.completion" if ask.kind == "chat" else "text_completion",
            "created": created,
            "model": launch.served_names[0],
            "choices": [_choice(ask, launch, index, answer) for index, answer in enumerate(ids)],
            "usage": usage_of(
                ask.prompt_tokens, sum(map(len, ids)), sum(cached) if launch.cached_details else None
            ),
        }
    )


def _choice(ask: GenerationRequest, launch: Launch, index: int, ids: list[int]) -> dict[str, object]:
    text = _text(launch, ids)
    content = {"message": {"role": "assistant", "content": text}} if ask.kind == "chat" else {"text": text}
    choice: dict[str, object] = {"index": index, **content, "logprobs": None, "finish_reason": "length"}
    choice |= {"stop_reason": None, "token_ids": ids if ask.token_ids else None}
    if ask.kind == "completion":
        prompt = list(ask.prompts[index]) if ask.token_ids else None
        choice |= {"prompt_logprobs": None, "prompt_token_ids": prompt}
    return choice


def _native(
    ask: GenerationRequest, launch: Launch, number: int, row: tuple[tuple[int, ...], list[int], int]
) -> dict[str, object]:
    prompt, ids, cached = row
    outputs: dict[str, object] = {"text": _text(launch, ids)} if launch.tokenizer else {}
    meta = {
        "id": launch.request_id(number),
        "finish_reason": {"type": "length", "length": ask.max_tokens},
        "prompt_tokens": len(prompt),
        "completion_tokens": len(ids),
        "cached_tokens": cached,
    }
    return outputs | {"output_ids": ids, "meta_info": meta}


def _text(launch: Launch, ids: list[int]) -> str:
    return "".join(map(text_of, ids)) if launch.tokenizer else ""
