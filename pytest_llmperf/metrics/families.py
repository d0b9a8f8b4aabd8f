"""Contribution of one request to each latency sample, in nanoseconds, and the turns of conversations.

Each function takes the record of a served request, or of a request that the client cancelled. An empty tuple means that
the latency does not exist for this request (a single token has no gap). None means that the server did not send the
data that the formula needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import sub

from pytest_llmperf.model.record import RequestRecord

MOST_TURNS = 20  # that a run reports one by one
_TURNS = re.compile(r"(hit_rate|ttft)_turn([1-9]\d{0,3})(plus)?")


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns of conversations, by their numbers from 1.

    Args:
        first: the first of the turns.
        open_end: whether all later turns belong to them.
    """

    first: int
    open_end: bool

    def __contains__(self, turn: int) -> bool:
        return turn == self.first or (self.open_end and turn > self.first)

    def __str__(self) -> str:
        return f"turns from {self.first} on" if self.open_end else f"turn {self.first}"


def turns_of(name: str) -> tuple[str, Turns] | None:
    """("hit_rate", turns from 2 on) for "hit_rate_turn2plus"; None for a metric or latency sample of all requests."""
    match = _TURNS.fullmatch(name)
    return None if match is None else (match[1], Turns(int(match[2]), match[3] is not None))


def turn_names(records: Sequence[RequestRecord]) -> list[str]:
    """"turn1", "turn2", …, "turn2plus", as far as the run has such turns; empty for a run without conversations."""
    last = max((record.turn for record in records), default=1)
    return [*(f"turn{turn}" for turn in range(1, min(last, MOST_TURNS) + 1)), "turn2plus"] if last > 1 else []


def hit_rate(records: Sequence[RequestRecord], turns: Turns, counters: Mapping[str, float | None]) -> float | None:
    """Cached ÷ prompt tokens of the served requests of these turns.

    Some servers leave a count of 0 out. So a missing count is 0 where another answer of the run has a count, or where
    the server's counter says that nothing was cached; else the hit rate is unknown.
    """
    served = [record for record in records if record.ok and record.turn in turns]
    reported = any(record.cached_tokens is not None for record in records)
    prompts = [record.prompt_tokens for record in served if record.prompt_tokens is not None]
    if not (reported or counters.get("prompt_tokens_cached") == 0) or len(prompts) < len(served) or not sum(prompts):
        return None
    return sum(record.cached_tokens or 0 for record in served) / sum(prompts)


def served_conversations(records: Sequence[RequestRecord]) -> int | None:
    """Number of conversations of which every turn was served; None for a run without conversations."""
    if all(record.turn == 1 for record in records):
        return None
    beginnings: dict[int, int] = {}
    unserved: set[int] = set()
    for record in sorted(records, key=lambda record: record.index):
        beginning = record.index if record.after is None else beginnings.get(record.after, record.after)
        beginnings[record.index] = beginning
        if not record.ok:
            unserved.add(beginning)
    return len(set(beginnings.values()) - unserved)


Samples = tuple[float, ...]


def ttft(record: RequestRecord) -> Samples | None:
    if record.whole:
        return None
    return tuple(first - record.intended_ns for first in record.arrivals_ns[:1])


def e2el(record: RequestRecord) -> Samples:
    """E2E latency; none for a request that the client cancelled, because its answer has no end."""
    if not record.ok:
        return ()
    return tuple(last - record.intended_ns for last in record.arrivals_ns[-1:])


def itl(record: RequestRecord) -> Samples | None:
    return None if record.whole else _gaps(record)


def _gaps(record: RequestRecord) -> tuple[int, ...]:
    arrivals_ns = record.arrivals_ns
    return tuple(map(sub, arrivals_ns[1:], arrivals_ns[:-1]))


def itl_per_token(record: RequestRecord) -> Samples | None:
    """Each gap shared out among the tokens of the chunk that ended it; a chunk of none adds its gap to the next."""
    if record.whole:
        return None
    if len(record.arrivals_ns) < 2:
        return ()
    if record.chunk_tokens is None:
        return None
    if set(record.chunk_tokens[1:]) == {1}:
        return tuple(map(float, _gaps(record)))
    shared: list[float] = []
    waited_ns = 0.0
    for gap_ns, tokens in zip(_gaps(record), record.chunk_tokens[1:], strict=True):
        waited_ns += gap_ns
        if tokens:
            shared += [waited_ns / tokens] * tokens
            waited_ns = 0.0
    return tuple(shared)


def tpot(record: RequestRecord) -> Samples | None:
    """Time per output token. With n > 1 the tokens of an answer are the mean over the answers of the request.

    An empty tuple for a single token, for a single chunk of several tokens, whose times are unknown, and for a
    cancelled request. None if the number of output tokens is unknown."""
    if not record.ok:
        return ()
    tokens = output_tokens(record)
    if tokens is None or record.whole:
        return None
    if tokens < 2 or len(record.arrivals_ns) < 2:
        return ()
    if (of_one := tokens / record.choices) <= 1:
        return ()
    return ((record.arrivals_ns[-1] - record.arrivals_ns[0]) / (of_one - 1),)


def largest_stall(record: RequestRecord) -> Samples | None:
    if record.whole:
        return None
    gaps = _gaps(record)
    return (max(gaps),) if gaps else ()


def send_delay(record: RequestRecord) -> Samples:
    return () if record.sent_ns is None else (record.sent_ns - record.intended_ns,)


def in_flight(record: RequestRecord) -> tuple[int, int]:
    """Time from the intended send to the end of a request: begin and end in nanoseconds on the clock of the run."""
    return record.intended_ns, record.ended_ns


def answering(record: RequestRecord) -> tuple[int, int]:
    """Time from the first chunk to the end: begin and end as in `in_flight`; empty if no chunk came."""
    return (record.arrivals_ns or (record.ended_ns,))[0], record.ended_ns


def before_send(record: RequestRecord) -> tuple[int, int]:
    return record.intended_ns, record.ended_ns if record.sent_ns is None else record.sent_ns


def prompt_tokens(record: RequestRecord) -> int | None:
    """Number of prompt tokens by the usage, else by the workload; None for a text that nothing counted."""
    return record.prompt_tokens or record.asked_prompt_tokens


def output_tokens(record: RequestRecord) -> int | None:
    """Number of output tokens by a named tokenizer if nothing confirms the usage, else by the usage, else by the
    chunks."""
    if record.text_tokens is not None:
        return record.text_tokens
    if record.output_tokens is not None:
        return record.output_tokens
    return None if record.chunk_tokens is None else sum(record.chunk_tokens)


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of latency, from which mean and percentiles are taken.

    Args:
        name: as in "ttft".
        take: returns the contribution of a request, in nanoseconds.
        formula: the formula in words.
        formula_id: changes whenever the formula changes.
        needs: the data that the formula requires.
        during: the interval in which the server's load can affect the latency. Requests whose intervals overlap are
            correlated.
        per_request: whether a request contributes at most one value.
        between_tokens: whether the latency is a time between tokens, so an answer of one token has no value.
        one_gap: whether a value is a single gap. One step of the server makes the gaps of all decoding requests.
        with_failed: whether failed requests contribute too (the metric describes the load generator, not the server).
        turns: the turns of conversations that contribute; None for all requests.
    """

    name: str
    take: Callable[[RequestRecord], Samples | None]
    formula: str
    formula_id: str
    needs: str
    during: Callable[[RequestRecord], tuple[int, int]] = answering
    per_request: bool = True
    between_tokens: bool = False
    one_gap: bool = False
    with_failed: bool = False
    turns: Turns | None = None

    @property
    def streamed(self) -> bool:
        """Whether a whole answer has no such latency."""
        return self.between_tokens or self.name == "ttft"


_STREAMED = "a served request whose answer was streamed (not endpoint(…, stream=False))"
_TWO_CHUNKS = "a served request with at least two content chunks, from a streamed answer"

FAMILIES: dict[str, Family] = {family.name: family for family in (
    Family("ttft", ttft, "first content chunk − intended send", "ttft.1", _STREAMED, in_flight),
    Family("itl", itl, "gaps between consecutive content chunks, pooled over requests", "itl.1", _TWO_CHUNKS,
           per_request=False, between_tokens=True, one_gap=True),
    Family("itl_per_token", itl_per_token, "each gap ÷ the n tokens of the chunk that ends it, counted n times, pooled",
           "itl_per_token.1", f"{_TWO_CHUNKS}, and a server that says how many tokens each chunk holds",
           per_request=False, between_tokens=True, one_gap=True),
    Family("tpot", tpot, "(last content chunk − first content chunk) ÷ (output tokens − 1)", "tpot.1",
           f"{_TWO_CHUNKS}, and a server that reports output tokens in its usage", between_tokens=True),
    Family("e2el", e2el, "last content chunk − intended send", "e2el.1", "a served request", in_flight),
    Family("largest_stall", largest_stall, "largest gap between consecutive content chunks of a request",
           "largest_stall.1", _TWO_CHUNKS, between_tokens=True, one_gap=True),
    Family("send_delay", send_delay, "actual send − intended send, failed requests included", "send_delay.1",
           "a request that was sent", before_send, with_failed=True),
)}


@cache
def family_named(name: str) -> Family | None:
    """The latency sample of that name: one of `FAMILIES`, or TTFT of some turns, such as "ttft_turn2plus"."""
    if name in FAMILIES or (named := turns_of(name)) is None or named[0] not in FAMILIES:
        return FAMILIES.get(name)
    family, turns = FAMILIES[named[0]], named[1]
    return replace(family, name=name, formula=f"{family.formula}, of {turns} of conversations", formula_id=f"{name}.1",
                   needs=f"a served request of {turns} of a conversation", turns=turns)
