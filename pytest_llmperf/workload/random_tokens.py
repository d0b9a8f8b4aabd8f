"""Prompts of random tokens: without anything in common, or with prefixes that groups of requests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.arguments import Length, as_call, boolean, integer, keywords_only, length
from pytest_llmperf.workload.arrivals import Arrivals
from pytest_llmperf.workload.base import DrawnWorkload, Workload, arrival_count, check_arrivals
from pytest_llmperf.workload.prompts import as_text, draw_length, draw_tokens, stream


@dataclass(frozen=True, slots=True, repr=False)
class SharedPrefix(DrawnWorkload):
    """Built by `shared_prefix`."""

    prefix: int
    suffix: Length
    output: Length
    groups: int
    arrivals: Arrivals
    count: int = field(metadata={"argument": "requests"})
    seed: int = 0
    text: bool = False

    def _draw(self, seed_offset: int) -> tuple[Request, ...]:
        seed = self.seed + seed_offset
        prefixes = [draw_tokens(stream(seed, "prefix", group), self.prefix) for group in range(self.groups)]
        return _drawn(self, seed, "suffix", self.suffix, prefixes)

    def __str__(self) -> str:
        return as_call("shared_prefix", self)


@keywords_only
def shared_prefix(*, prefix: int = 4000, suffix: Length, output: Length, groups: int = 1, arrivals: Arrivals,
                  requests: int | str, seed: int = 0, text: bool = False) -> Workload:
    """Requests in groups, each group with a prefix of its own. Successive requests belong to successive groups.

    Args:
        prefix: number of tokens in the prefix of a group.
        suffix: tokens after the prefix (words with `text`): a number, or (low, high) uniform with both included.
        output: tokens to generate, in the same form.
        groups: number of groups.
        arrivals: arrival process of the requests.
        requests: total number of requests, or a duration at the rate of `arrivals`: "90s", "10min" or "2h".
        seed: seed of the workload. Different seeds give different prefixes, so runs share no prefix.
        text: whether to send words instead of token ids.

    Raises:
        SpecError: an argument is invalid.
    """
    call = "shared_prefix"
    count = arrival_count(call, "requests", requests, arrivals)
    check_arrivals(call, arrivals, count)
    return SharedPrefix(integer(call, "prefix", prefix), length(call, "suffix", suffix),
                        length(call, "output", output), integer(call, "groups", groups), arrivals, count,
                        integer(call, "seed", seed, least=None), boolean(call, "text", text))


@dataclass(frozen=True, slots=True, repr=False)
class RandomTokens(DrawnWorkload):
    """Built by `random_tokens`."""

    input: Length
    output: Length
    arrivals: Arrivals
    count: int = field(metadata={"argument": "requests"})
    seed: int = 0
    text: bool = False

    def _draw(self, seed_offset: int) -> tuple[Request, ...]:
        return _drawn(self, self.seed + seed_offset, "input", self.input, [()])

    def __str__(self) -> str:
        return as_call("random_tokens", self)


@keywords_only
def random_tokens(*, input: Length, output: Length, arrivals: Arrivals, requests: int | str, seed: int = 0,
                  text: bool = False) -> Workload:
    """Requests with independent random prompts.

    Args:
        input: tokens of each prompt (words where `text`): a number, or (low, high) uniform with both included.
        output: tokens to generate, given in the same forms as `input`.
        arrivals: when they come: `poisson(8)`, `closed(16)`, …
        requests: how many, or for how long at the rate of `arrivals`: "90s", "10min" or "2h".
        seed: another seed is another set of prompts, lengths and times. Each run adds 1: neighbours share runs.
        text: send words instead of token ids.

    Raises:
        SpecError: an argument is invalid.
    """
    call = "random_tokens"
    count = arrival_count(call, "requests", requests, arrivals)
    check_arrivals(call, arrivals, count)
    return RandomTokens(length(call, "input", input), length(call, "output", output), arrivals, count,
                        integer(call, "seed", seed, least=None), boolean(call, "text", text))


def _drawn(
    workload: RandomTokens | SharedPrefix, seed: int, name: str, lengths: Length, prefixes: Sequence[tuple[int, ...]]
) -> tuple[Request, ...]:
    """Requests whose prompts begin with one of the prefixes in turn, each followed by tokens of its own.

    Args:
        name: of the stream of random numbers that draws the lengths.
        lengths: of the tokens behind the prefix.
    """
    offsets_ns = workload.arrivals.offsets_ns(workload.count, seed)
    inputs, outputs, tokens = stream(seed, name), stream(seed, "output"), stream(seed, "tokens")
    made = []
    for index in range(workload.count):
        prompt = prefixes[index % len(prefixes)] + draw_tokens(tokens, draw_length(inputs, lengths))
        made.append(Request(
            index=index,
            prompt=as_text(prompt) if workload.text else prompt,
            output_tokens=draw_length(outputs, workload.output),
            prompt_tokens=None if workload.text else len(prompt),
            at_ns=None if offsets_ns is None else offsets_ns[index],
        ))
    return tuple(made)
