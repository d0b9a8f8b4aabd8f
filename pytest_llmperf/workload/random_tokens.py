"""Prompts that share nothing: the baseline case of every serving benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.arguments import Length, as_call, boolean, integer, keywords_only, length
from pytest_llmperf.workload.arrivals import Arrivals
from pytest_llmperf.workload.base import DrawnWorkload, Workload, arrival_count, check_arrivals
from pytest_llmperf.workload.prompts import as_text, draw_length, draw_tokens
from pytest_llmperf.workload.seeds import stream


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
        seed = self.seed + seed_offset
        offsets_ns = self.arrivals.offsets_ns(self.count, seed)
        inputs, outputs = stream(seed, "input"), stream(seed, "output")
        tokens = stream(seed, "tokens")
        made = []
        for index in range(self.count):
            prompt = draw_tokens(tokens, draw_length(inputs, self.input))
            made.append(Request(
                index=index,
                prompt=as_text(prompt) if self.text else prompt,
                output_tokens=draw_length(outputs, self.output),
                prompt_tokens=None if self.text else len(prompt),
                at_ns=None if offsets_ns is None else offsets_ns[index],
            ))
        return tuple(made)

    @property
    def concurrency(self) -> int | None:
        return self.arrivals.concurrency

    def __str__(self) -> str:
        return as_call("random_tokens", self)


@keywords_only
def random_tokens(*, input: Length, output: Length, arrivals: Arrivals, requests: int | str, seed: int = 0,
                  text: bool = False) -> Workload:
    """Requests with independent random prompts.

    Args:
        input: tokens of each prompt (words where `text`): a number, or (low, high) uniform with both included.
        output: tokens to generate, likewise.
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
