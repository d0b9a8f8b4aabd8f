"""How far a PASS must stay below its limit because server starts differ, or the moments of one.

Counts alone cannot see starts that differ much: a tail comes from the few slow ones, and five lucky starts show both a
low rate and an even one (up to 26 % false PASS at a shift of one sd). The latencies themselves do see it: `start_reach`
is how much slower the typical start may be than those that were seen, `time_reach` the typical moment of a start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, sqrt

from pytest_llmperf.stats.mean import mean, sd, t_quantile
from pytest_llmperf.stats.stretches import places, stretches

#: Half-widths of the levels' t interval by which a PASS must stay clear of the limit. At the exact limit, five starts
#: and shifts of 0.3 to 1 sd: 1 gives up to 12 % false PASS, 1.5 up to 8 %, 2 up to 5 %.
REACH = 2.0
#: Beyond it nothing is known of the levels, and no number says more.
MOST = 20.0


@dataclass(frozen=True, slots=True)
class Reach:
    """Log ratios, 0 or more.

    Args:
        starts: because server starts differ.
        time: because the moments of one do.
    """

    starts: float = 0.0
    time: float = 0.0

    @property
    def both(self) -> float:
        return max(self.starts, self.time)


def start_reach(values: Sequence[Sequence[float]], starts: Sequence[str], confidence: float) -> float:
    """How far, as a log ratio, a PASS must stay below its limit because server starts differ; 0 for a single start.

    Args:
        values: of each run its latencies; only finite ones above 0 count.
        starts: of each run the server start that it ran on.
        confidence: of the one-sided test that will use it.
    """
    by_start: dict[str, list[float]] = {}
    for run, start in zip(values, starts, strict=True):
        by_start.setdefault(start, []).extend(run)
    return _reach([list(by_start.values())], confidence)


def time_reach(values: Sequence[Sequence[float]], seeds: Sequence[int], overlap: float, confidence: float) -> float:
    """The same because a server has slow seconds, in which it slows all that it serves; 0 of one request at a time.

    Args:
        values: of each run its latencies in the order of time; only finite ones above 0 count.
        seeds: of each run that of its requests.
        overlap: requests that are served at once, on average.
        confidence: of the one-sided test that will use it.
    """
    return _reach(places(stretches(values, seeds, overlap), seeds), confidence) if overlap > 1 else 0.0


def _reach(strata: Sequence[Sequence[Sequence[float]]], confidence: float) -> float:
    """Half-widths of the t interval of the mean level, from levels that are compared within their stratum."""
    known = [[level for level in map(_level, stratum) if level is not None] for stratum in strata]
    levels, freedom = sum(map(len, known)), sum(max(0, len(stratum) - 1) for stratum in known)
    if not freedom:
        return 0.0
    squares = sum((len(stratum) - 1) * sd(stratum) ** 2 for stratum in known if len(stratum) > 1)
    return min(MOST, REACH * t_quantile(confidence, freedom) * sqrt(squares / freedom / levels))


def _level(values: Sequence[float]) -> float | None:
    logs = [log(value) for value in values if 0 < value < inf]
    return mean(logs) if logs else None
