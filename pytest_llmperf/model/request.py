"""What a workload asks for, independent of the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a workload.

    Args:
        index: position in the workload, from 0.
        prompt: token ids, or text where text was asked for.
        output_tokens: exactly how many tokens the server must generate.
        prompt_tokens: number of prompt tokens that the server must count; None for text, whose count depends on the
            server's tokenizer.
        at_ns: when to send, in nanoseconds after the start of the run; None in a closed loop.
        after: index of the request that must have ended before (the previous turn of a conversation).
        think_ns: pause between the end of `after` and this request.
        tag: class of the request within a mixed workload ("stream", "prefill"), "" where there is one class.
        turn: number of the request within its conversation, from 1.
        continues: whether the prompt is sent behind the whole prompt of `after` and the server's answer to it. Then
            `prompt` holds the new tokens only, and `prompt_tokens` counts all tokens, if each earlier answer has the
            length that was asked for.
        answer_used: whether a later request continues this one, so its answer must arrive as token ids or text.
    """

    index: int
    prompt: tuple[int, ...] | str
    output_tokens: int
    prompt_tokens: int | None
    at_ns: int | None = None
    after: int | None = None
    think_ns: int = 0
    tag: str = ""
    turn: int = 1
    continues: bool = False
    answer_used: bool = False
