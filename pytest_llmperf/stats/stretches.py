"""Stretches of runs, which are compared with each other: what requests share shows there.

Choices were made by simulation at the exact limit, as in `design`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TypeVar

T = TypeVar("T")

BATCHES_PER_RUN = 10
#: A batch holds so many times the requests that are served beside one of them: what they share ends within it.
BATCH_OVERLAPS = 2


def batches(items: Sequence[T], count: int = BATCHES_PER_RUN) -> list[Sequence[T]]:
    """Consecutive stretches as equal as can be; fewer than `count` where there are fewer items."""
    count = min(count, len(items))
    return [items[len(items) * i // count:len(items) * (i + 1) // count] for i in range(count)]


def stretches(runs: Sequence[Sequence[T]], seeds: Sequence[int], overlap: float = 1.0) -> list[list[Sequence[T]]]:
    """Batches of each run, equally many, and each long enough that requests of one seldom meet those of another; two at
    least where there is a single draw of the traffic, for one says nothing."""
    count = max(1 if len(set(seeds)) > 1 else 2, apart([len(run) for run in runs if run], overlap))
    return [batches(run, count) for run in runs]


def apart(requests: Sequence[int], overlap: float) -> int:
    """Stretches of the shortest run that hardly share anything; 0 where all of it is served at once.

    Args:
        requests: of each run, how many.
        overlap: requests that are served at once, on average.
    """
    return min(BATCHES_PER_RUN, int(min(requests, default=0) / max(1.0, BATCH_OVERLAPS * (overlap - 1))))


def places(runs: Sequence[Sequence[Sequence[T]]], seeds: Sequence[int]) -> list[list[list[T]]]:
    """The stretches that are compared with each other, those of one seed's runs joined.

    A run has a course that the next has, too: caches that fill, a queue that grows, a first wave. So stretches are
    compared where they have the same place in the runs of other seeds; those of a single seed with each other.

    Args:
        runs: of each run its stretches.
        seeds: of each run that of its requests.
    """
    joined: dict[int, list[list[T]]] = {}
    for run, seed in zip(runs, seeds, strict=True):
        joined[seed] = [[*before, *more] for before, more in zip_longest(joined.get(seed, []), run, fillvalue=())]
    if len(joined) < 2:
        return list(joined.values())
    return [[part for part in place if part is not None] for place in zip_longest(*joined.values())]
