"""Prompts of random tokens: without anything in common, with prefixes that groups share, or of two classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_llmperf.errors import SpecError, echo
from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.arguments import Length, boolean, call_text, integer, keywords_only, length
from pytest_llmperf.workload.arrivals import Arrivals
from pytest_llmperf.workload.base import DrawnWorkload, Workload, arrival_count, check_arrivals
from pytest_llmperf.workload.prompts import as_text, derive, draw_length, draw_tokens, stream


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

    __str__ = call_text("shared_prefix")


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

    __str__ = call_text("random_tokens")


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


@dataclass(frozen=True, slots=True, repr=False)
class Mixed(Workload):
    """Built by `mixed`."""

    stream: RandomTokens
    prefill: RandomTokens
    seed: int = 0

    def requests(self, seed_offset: int = 0) -> tuple[Request, ...]:
        both = [*self._of("stream", self.stream, seed_offset, first=0),
                *self._of("prefill", self.prefill, seed_offset, first=self.stream.count)]
        both.sort(key=lambda request: request.at_ns or 0)
        position = {request.index: index for index, request in enumerate(both)}
        return tuple(replace(request, index=index, after=None if request.after is None else position[request.after])
                     for index, request in enumerate(both))

    def _of(self, tag: str, part: RandomTokens, seed_offset: int, first: int) -> list[Request]:
        """The requests of one class of the mix. A closed loop with c requests in flight becomes c chains of requests,
        so that no class delays the other class."""
        seeded = replace(part, seed=derive(self.seed + seed_offset, tag, part.seed))
        placed = [replace(request, index=first + request.index, tag=tag) for request in seeded.requests()]
        if part.concurrency is not None:
            return [replace(request, at_ns=0) if i < part.concurrency
                    else replace(request, after=request.index - part.concurrency) for i, request in enumerate(placed)]
        return placed

    @property
    def concurrency(self) -> None:
        return None

    __str__ = call_text("mixed")


@keywords_only
def mixed(*, stream: Mapping[str, Any] | Workload, prefill: Mapping[str, Any] | Workload, seed: int = 0) -> Workload:
    """Two classes of random prompts in one run, tagged "stream" and "prefill".

    Args:
        stream, prefill: the arguments of `random_tokens` as a mapping, such as
            {"input": 64, "output": 200, "arrivals": closed(4), "requests": 20}, or such a workload.
        seed: seed of the prompts, lengths and times. Run k uses seed + k, so workloads with adjacent seeds share runs.

    Raises:
        SpecError: the arguments of a class or the seed are not valid.
    """
    return Mixed(_part("stream", stream), _part("prefill", prefill), integer("mixed", "seed", seed, least=None))


def _part(name: str, given: Mapping[str, Any] | Workload) -> RandomTokens:
    if isinstance(given, Mapping):
        try:
            given = random_tokens(**given)
        except (SpecError, TypeError) as error:
            text = str(error).rstrip(".")
            raise SpecError(f"mixed: {name} takes the arguments of random_tokens: {text}.") from None
    if not isinstance(given, RandomTokens):
        raise SpecError(f"mixed: {name} must be the arguments of random_tokens or such a workload, got {given!r}.")
    if given.concurrency is not None and given.arrivals.offsets_ns(1, 0) is not None:
        raise SpecError(f"mixed: {name} has arrivals={echo(given.arrivals)}, and a class of a mix has no limit beside "
                        "its arrivals. Use closed(16) or poisson(8).")
    return given
