"""Pauses between an answer and the next message of a conversation: fixed, uniform or exponential, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from random import Random

from pytest_llmperf.clock import seconds
from pytest_llmperf.workload.arguments import number, pair, plain


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
        SpecError: it is none of these.
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
