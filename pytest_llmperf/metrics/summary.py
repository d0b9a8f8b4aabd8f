"""Mean and percentiles of a sample, in pure Python, so that importing this module does not import numpy."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, fsum

#: Statistic → share of the sample at or below it; None if it is not a percentile.
STATS: dict[str, float | None] = {
    "mean": None,
    "p50": 0.50,
    "p75": 0.75,
    "p90": 0.90,
    "p95": 0.95,
    "p99": 0.99,
    "max": 1.0,
}

#: Other spellings of a statistic.
ALIASES = {"median": "p50"}


def percentile(ordered: Sequence[float], share: float) -> float:
    """Value below which `share` (0…1) of a sorted sample lies, interpolated linearly between order statistics.

    This is numpy's default method (definition 7 of Hyndman and Fan, 1996).

    Raises:
        ValueError: the sample is empty or `share` lies outside 0…1.
    """
    if not ordered or not 0 <= share <= 1:
        raise ValueError(f"no percentile {share} of {len(ordered)} values")
    position = (len(ordered) - 1) * share
    below = floor(position)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    if position == below or low == high:  # what lies above may be infinite
        return low
    return low + (high - low) * (position - below)


def summarise(values: Sequence[float]) -> dict[str, float | None]:
    """Every statistic of `STATS`; all None for an empty sample."""
    if not values:
        return dict.fromkeys(STATS)
    ordered = sorted(values)
    return {stat: fsum(ordered) / len(ordered) if share is None else percentile(ordered, share)
            for stat, share in STATS.items()}


def statistic(values: Sequence[float], stat: str) -> float | None:
    """One statistic of `STATS`; None for an empty sample."""
    return summarise(values)[stat]
