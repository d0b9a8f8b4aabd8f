"""Recorded conversations: turns that name their parent contain what the server answers to the parent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.trace_file import TraceLine


def conversations_of(
    lines: Sequence[TraceLine], times_ns: Sequence[int], prompt: Callable[[TraceLine, int], tuple[int, ...]], path: str
) -> tuple[Request, ...]:
    """The requests of a trace that links turns.

    A turn whose parent is not among the lines, or comes later, is a first turn. A turn with fewer tokens than its
    parent's prompt and answer was cut by its client: its prompt is new, and it waits for the parent all the same.

    Args:
        lines: by time.
        times_ns: when to send each line, after the start of the run.
        prompt: makes the tokens of a line, by its position.
        path: of the trace, for messages.

    Raises:
        SpecError: no line has a parent among the lines.
    """
    positions: dict[str, int] = {}
    made: list[Request] = []
    for index, line in enumerate(lines):
        parent = None if line.parent is None else positions.get(line.parent)
        request = Request(index, prompt(line, index), line.output_tokens, line.input_tokens, at_ns=times_ns[index])
        made.append(request if parent is None else _next_turn(request, made, parent))
        if line.chat is not None:
            positions[line.chat] = index
    if all(request.after is None for request in made):
        raise SpecError(f'trace: {path} has no parent_chat_id of a request that was asked for, and reply="server" '
                        'needs it. Write reply="seeded", or ask for more requests. Nothing was sent.')
    return tuple(made)


def _next_turn(request: Request, made: list[Request], parent: int) -> Request:
    before = made[parent]
    request = replace(request, after=parent, turn=before.turn + 1)
    history = (before.prompt_tokens or 0) + before.output_tokens
    new_tokens = (request.prompt_tokens or 0) - history
    if new_tokens < 1:
        return request
    made[parent] = replace(before, answer_used=True)
    return replace(request, prompt=request.prompt[-new_tokens:], continues=True)
