"""Metrics of some turns of conversations, such as `hit_rate_turn2plus`, and of whole conversations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
