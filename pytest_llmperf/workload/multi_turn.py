"""Conversations whose history grows with every turn."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from random import Random
from typing import Literal

from pytest_llmperf.clock import seconds
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.arguments import (
    Length,
    boolean,
    call_text,
    integer,
    keywords_only,
    length,
    number,
    pair,
    plain,
)
from pytest_llmperf.workload.arrivals import Arrivals
from pytest_llmperf.workload.base import DrawnWorkload, Workload, arrival_count, check_arrivals
from pytest_llmperf.workload.prompts import as_text, draw_length, draw_tokens, stream


@dataclass(frozen=True, slots=True, repr=False)
class Exponential:
    """Built by `exponential`."""

    mean_s: float

    def __repr__(self) -> str:
        return f"exponential({plain(self.mean_s)})"


ThinkTime = float | tuple[float, float] | Exponential


def exponential(mean_s: float) -> Exponential:
    """Exponentially distributed think times.

    Args:
        mean_s: their mean, in seconds.

    Raises:
        SpecError: the mean is not a number above 0.
    """
    return Exponential(number("exponential", "mean_s", mean_s, above=0))


def think_time(call: str, name: str, value: object) -> ThinkTime:
    """`value` as a number of seconds ≥ 0, as (low, high), or as `exponential(mean)`.

    Raises:
        SpecError: `value` is none of these.
    """
    if isinstance(value, Exponential):
        return value
    if isinstance(value, (tuple, list)):
        low, high = (number(call, name, bound, least=0) for bound in pair(call, name, value))
        return (low, high)
    return number(call, name, value, least=0)


def draw_think_ns(rng: Random, think_s: ThinkTime) -> int:
    """A think time in nanoseconds."""
    if isinstance(think_s, Exponential):
        return seconds(-think_s.mean_s * log(1.0 - rng.random()))
    if isinstance(think_s, tuple):
        low, high = think_s
        return seconds(low + rng.random() * (high - low))
    return seconds(think_s)


Reply = Literal["seeded", "server"]


@dataclass(frozen=True, slots=True, repr=False)
class MultiTurn(DrawnWorkload):
    """Built by `multi_turn`."""

    conversations: int
    turns: int
    input: Length
    output: Length
    arrivals: Arrivals
    think_s: ThinkTime = 0.0
    seed: int = 0
    text: bool = False
    reply: Reply = "seeded"
    starters: int = 0
    starter: Length = 0

    def _draw(self, seed_offset: int) -> tuple[Request, ...]:
        seed = self.seed + seed_offset
        starts_ns = self.arrivals.offsets_ns(self.conversations, seed)
        starters = [self._starter(seed, number) for number in range(self.starters)] or [()]
        made: list[Request] = []
        for conversation in range(self.conversations):
            start_ns = None if starts_ns is None else starts_ns[conversation]
            starter = starters[conversation % len(starters)]
            made += self._conversation(seed, conversation, starter, first=len(made), start_ns=start_ns)
        return tuple(made)

    def _starter(self, seed: int, number: int) -> tuple[int, ...]:
        rng = stream(seed, "starter", number)
        return draw_tokens(rng, draw_length(rng, self.starter))

    def _conversation(
        self, seed: int, conversation: int, starter: tuple[int, ...], first: int, start_ns: int | None
    ) -> list[Request]:
        """Each turn's prompt is the last one, the reply to it, and the next user message. A prompt that continues with
        the server's answer holds the message only."""
        inputs, outputs = stream(seed, "input", conversation), stream(seed, "output", conversation)
        tokens, thinks = stream(seed, "tokens", conversation), stream(seed, "think", conversation)
        live = self.reply == "server"
        history, tokens_so_far = starter, len(starter)
        made = []
        for turn in range(self.turns):
            message = draw_tokens(tokens, draw_length(inputs, self.input))
            history, tokens_so_far = history + message, tokens_so_far + len(message)
            output_tokens = draw_length(outputs, self.output)
            continues = live and turn > 0
            made.append(Request(
                index=first + turn,
                prompt=self._written(message, later=True) if continues else self._written(history),
                output_tokens=output_tokens,
                prompt_tokens=None if self.text else tokens_so_far,
                at_ns=start_ns if turn == 0 else None,
                after=None if turn == 0 else first + turn - 1,
                think_ns=0 if turn == 0 else draw_think_ns(thinks, self.think_s),
                turn=turn + 1,
                continues=continues,
                answer_used=live and turn + 1 < self.turns,
            ))
            if not live:
                history += draw_tokens(tokens, output_tokens)
            tokens_so_far += output_tokens
        return made

    def _written(self, tokens: tuple[int, ...], *, later: bool = False) -> tuple[int, ...] | str:
        """Token ids, or words; a later part of a text begins with a space."""
        return f"{' ' * later}{as_text(tokens)}" if self.text else tokens

    __str__ = call_text("multi_turn")


@keywords_only
def multi_turn(*, input: Length, output: Length, turns: int, think_s: ThinkTime = 0.0, arrivals: Arrivals,
               conversations: int | str, seed: int = 0, text: bool = False, reply: Reply = "seeded", starters: int = 0,
               starter: Length = 0) -> Workload:
    """Conversations of several turns; `arrivals` says when conversations begin.

    With seeded replies the history holds replies of the asked length, never what the server said, so that every engine
    gets the same bytes. A prefix cache can then supply the previous prompt, but not the reply to it. With the server's
    replies the next turn contains what the server answered, as a client of a chat sends it. A prefix cache can then
    supply the reply too. If a turn fails, the turns after it are not sent and count as failed requests.

    Args:
        input: tokens of each user message (words where `text`): a number, or (low, high) uniform, both included.
        output: tokens of each reply, given in the same forms as `input`.
        turns: requests in each conversation.
        think_s: seconds between the end of a reply and the next message: a number, (low, high) uniform, or
            `exponential(mean)`.
        arrivals: when conversations begin, or `closed(n)` for at most n requests in flight.
        conversations: how many, or for how long conversations begin: "90s", "10min" or "2h".
        seed: seed of the conversations and times. Run k uses seed + k, so workloads with adjacent seeds share runs.
        text: send words instead of token ids.
        reply: "seeded", or "server" for what the server answered: its token ids, with `text` its text.
        starters: number of different texts that conversations begin with, such as system prompts; 0 for none.
            Successive conversations begin with successive starters, before their first message.
        starter: tokens of each starter, in the form of `input`.

    Raises:
        SpecError: an argument is invalid.
    """
    call = "multi_turn"
    count = arrival_count(call, "conversations", conversations, arrivals)
    check_arrivals(call, arrivals, count)
    check_reply(call, reply)
    begins = integer(call, "starters", starters, least=0)
    if bool(begins) != bool(starter):
        raise SpecError(f"{call}: starters and starter belong together, got starters={starters}, starter={starter}. "
                        "Write starters=10, starter=(3500, 4000).")
    return MultiTurn(count, integer(call, "turns", turns), length(call, "input", input),
                     length(call, "output", output), arrivals, think_time(call, "think_s", think_s),
                     integer(call, "seed", seed, least=None), boolean(call, "text", text), reply, begins,
                     length(call, "starter", starter) if begins else 0)


def check_reply(call: str, reply: object) -> None:
    """Raise SpecError if `reply` is not a `Reply`."""
    if reply not in ("seeded", "server"):
        raise SpecError(f'{call}: reply must be "seeded" or "server", got {reply!r}.')
