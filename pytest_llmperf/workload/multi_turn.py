"""Conversations whose history grows with every turn."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmperf.clock import seconds
from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.arguments import Length, as_call, boolean, integer, keywords_only, length, number
from pytest_llmperf.workload.arrivals import Arrivals
from pytest_llmperf.workload.base import Workload, check_arrivals
from pytest_llmperf.workload.prompts import as_text, draw_length, draw_tokens
from pytest_llmperf.workload.seeds import stream


@dataclass(frozen=True, slots=True, repr=False)
class MultiTurn(Workload):
    """Built by `multi_turn`."""

    conversations: int
    turns: int
    input: Length
    output: Length
    arrivals: Arrivals
    think_s: float = 0.0
    seed: int = 0
    text: bool = False

    def requests(self, seed_offset: int = 0) -> tuple[Request, ...]:
        seed = self.seed + seed_offset
        starts_ns = self.arrivals.offsets_ns(self.conversations, seed)
        made: list[Request] = []
        for conversation in range(self.conversations):
            start_ns = None if starts_ns is None else starts_ns[conversation]
            made += self._conversation(seed, conversation, first=len(made), start_ns=start_ns)
        return tuple(made)

    def _conversation(self, seed: int, conversation: int, first: int, start_ns: int | None) -> list[Request]:
        """Each turn's prompt is the last one, a seeded reply instead of the server's, and the next user message."""
        inputs, outputs = stream(seed, "input", conversation), stream(seed, "output", conversation)
        tokens = stream(seed, "tokens", conversation)
        history: tuple[int, ...] = ()
        made = []
        for turn in range(self.turns):
            history += draw_tokens(tokens, draw_length(inputs, self.input))
            output_tokens = draw_length(outputs, self.output)
            made.append(Request(
                index=first + turn,
                prompt=as_text(history) if self.text else history,
                output_tokens=output_tokens,
                prompt_tokens=None if self.text else len(history),
                at_ns=start_ns if turn == 0 else None,
                after=None if turn == 0 else first + turn - 1,
                think_ns=0 if turn == 0 else seconds(self.think_s),
            ))
            history += draw_tokens(tokens, output_tokens)
        return made

    @property
    def concurrency(self) -> int | None:
        return self.arrivals.concurrency

    def __str__(self) -> str:
        return as_call("multi_turn", self)


@keywords_only
def multi_turn(*, input: Length, output: Length, turns: int, think_s: float = 0.0, arrivals: Arrivals,
               conversations: int, seed: int = 0, text: bool = False) -> Workload:
    """Conversations of several turns; `arrivals` says when conversations begin.

    The history holds seeded replies of the asked length, never what the server said, so that every engine gets the
    same bytes. A prefix cache can therefore supply the previous prompt, but not the reply to it.

    Args:
        input: tokens of each user message (words where `text`): a number, or (low, high) uniform, both included.
        output: tokens of each reply, likewise.
        turns: requests in each conversation.
        think_s: seconds between the end of a reply and the next message.
        arrivals: when conversations begin, or `closed(n)` for at most n requests in flight.
        conversations: how many.
        seed: seed of the conversations and times. Run k uses seed + k, so workloads with adjacent seeds share runs.
        text: send words instead of token ids.

    Raises:
        SpecError: an argument is invalid.
    """
    call = "multi_turn"
    count = integer(call, "conversations", conversations)
    check_arrivals(call, arrivals, count)
    return MultiTurn(count, integer(call, "turns", turns), length(call, "input", input),
                     length(call, "output", output), arrivals, number(call, "think_s", think_s, least=0),
                     integer(call, "seed", seed, least=None), boolean(call, "text", text))
