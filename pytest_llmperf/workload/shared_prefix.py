"""Groups of requests that begin with the same long prefix: system prompts, documents, few-shot examples."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.arguments import Length, as_call, boolean, integer, keywords_only, length
from pytest_llmperf.workload.arrivals import Arrivals
from pytest_llmperf.workload.base import DrawnWorkload, Workload, arrival_count, check_arrivals
from pytest_llmperf.workload.prompts import as_text, draw_length, draw_tokens
from pytest_llmperf.workload.seeds import stream


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
        offsets_ns = self.arrivals.offsets_ns(self.count, seed)
        prefixes = [draw_tokens(stream(seed, "prefix", group), self.prefix) for group in range(self.groups)]
        suffixes, outputs = stream(seed, "suffix"), stream(seed, "output")
        tokens = stream(seed, "tokens")
        made = []
        for index in range(self.count):
            prompt = prefixes[index % self.groups] + draw_tokens(tokens, draw_length(suffixes, self.suffix))
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
