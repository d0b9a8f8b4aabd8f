"""How much a clustered observation is worth: the effective sample size of an exceedance rate.

Requests of one run, and runs of one server start, resemble each other. The variance of the exceedance rate between
clusters, over that of independent requests, is the design effect (Kish, 1965); few clusters know it badly, so the
effective size shrinks further by a ratio of t quantiles (Korn and Graubard, 1998).

Choices were made by simulation at the exact limit (AR(1) of 0.6 within runs, starts shifted by up to one sd): the
prior, which speaks where few or no requests are over and the estimate means nothing, and the growth of the excess
variance from the observed rate up to the allowed one, without which a lucky low rate also looks precise.

Counts alone cannot see starts that differ much: a tail comes from the few slow ones, and five lucky starts show both a
low rate and an even one (up to 26 % false PASS at a shift of one sd). The latencies themselves do see it: `start_reach`
is how much slower the typical start may be than those that were seen, `time_reach` the typical moment of a start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, pow, sqrt
from typing import TypeVar

from pytest_llmperf.stats.mean import mean, sd, t_quantile

T = TypeVar("T")

#: Design effect of one server's requests before any was seen to be over, worth so many requests over.
PRIOR_EFFECT = 1.75
PRIOR_EVENTS = 4
#: Exponents of (allowed ÷ observed rate) by which the excess variance grows; between starts more where counts are all
#: that is known of them.
GROWTH_BATCHES = 0.5
GROWTH_STARTS = 1.5
GROWTH_LEVELLED_STARTS = 1.0
#: Half-widths of the levels' t interval by which a PASS must stay clear of the limit. At the exact limit, five starts
#: and shifts of 0.3 to 1 sd: 1 gives up to 12 % false PASS, 1.5 up to 8 %, 2 up to 5 %.
REACH = 2.0
BATCHES_PER_RUN = 10
#: A batch holds so many times the requests that are served beside one of them: what they share ends within it.
BATCH_OVERLAPS = 2


@dataclass(frozen=True, slots=True)
class Count:
    """`over` of `of` observations are over the limit, e.g. those of one request or of one cluster."""

    over: int
    of: int


def total(counts: Sequence[Count]) -> Count:
    return Count(sum(count.over for count in counts), sum(count.of for count in counts))


def effective_n(weights: Sequence[float]) -> float:
    """How many equal observations know a weighted share as well as these: (Σw)² ÷ Σw² (Kish, 1965); 1 … their number.

    Raises:
        ZeroDivisionError: nothing weighs anything.
    """
    return sum(weights) ** 2 / sum(weight * weight for weight in weights)


def batches(items: Sequence[T], count: int = BATCHES_PER_RUN) -> list[Sequence[T]]:
    """Consecutive stretches as equal as can be; fewer than `count` where there are fewer items."""
    count = min(count, len(items))
    return [items[len(items) * i // count:len(items) * (i + 1) // count] for i in range(count)]


def design_effect(clusters: Sequence[Count], allowed: float, growth: float, at_once: float = 1.0) -> float:
    """Variance of the exceedance rate, at the allowed rate, over that of independent observations; at least 1.

    Args:
        clusters: two or more.
        allowed: rate at which the test decides, above 0.
        growth: exponent of (allowed ÷ observed) on the excess variance; 0 for none.
        at_once: observations that one event brings; the prior is of events.
    """
    both = total(clusters)
    if both.over in (0, both.of):
        return at_once if both.over else max(at_once, PRIOR_EFFECT)
    rate, m = both.over / both.of, len(clusters)
    squares = sum((cluster.over - rate * cluster.of) ** 2 for cluster in clusters)
    observed = m / (m - 1) * squares / (rate * (1 - rate) * both.of)
    at_limit = 1 + (max(1.0, observed) - 1) * pow(max(1.0, allowed / rate), growth)
    events = both.over / at_once
    return max(1.0, (PRIOR_EVENTS * max(at_once, PRIOR_EFFECT) + events * at_limit) / (PRIOR_EVENTS + events))


def worth(runs: Sequence[Sequence[Count]], starts: Sequence[str], allowed: float, confidence: float,
          growth_starts: float = GROWTH_STARTS, *, repeats: float = 1.0, in_time: Sequence[Sequence[Count]] = (),
          at_once: float = 1.0, overlap: float = 1.0) -> float:
    """Effective observations per observation, above 0 and at most 1: the smallest of batches', stretches', starts'.

    Requests that were sent again are one draw of the traffic, however often: they are worth their number once.

    Args:
        runs: of each run its requests in the order of time.
        starts: of each run the server start that it ran on.
        allowed: exceedance rate in question.
        confidence: of the one-sided test that will use it.
        growth_starts: as `growth` of `design_effect`, between starts.
        repeats: how often each run's requests were sent, on average.
        in_time: of each run its stretches of time, where one request brings many observations and others the same
            ones at the same time; none: the order of requests says all.
        at_once: observations that one moment brings, on average.
        overlap: requests that are served at once, on average.
    """
    by_batch = [total(batch) for batch in stretches(runs, overlap)]
    by_stretch = [stretch for run in in_time for stretch in run]
    by_start = [total([count for run, start in zip(runs, starts, strict=True) if start == one for count in run])
                for one in dict.fromkeys(starts)]
    return min(_worth(by_batch, allowed, GROWTH_BATCHES, confidence, at_once) / repeats,
               _worth(by_stretch, allowed, GROWTH_BATCHES, confidence, at_once) / repeats,
               _worth(by_start, allowed, growth_starts, confidence, at_once))


def stretches(runs: Sequence[Sequence[T]], overlap: float = 1.0) -> list[Sequence[T]]:
    """Batches of all runs, each long enough that requests of one seldom meet those of another; of a single run two at
    least, for one says nothing."""
    least, size = (2 if len(runs) == 1 else 1), max(1.0, BATCH_OVERLAPS * (overlap - 1))
    return [batch for run in runs
            for batch in batches(run, max(least, min(BATCHES_PER_RUN, int(len(run) / size))))]


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
    return _reach(list(by_start.values()), confidence)


def time_reach(values: Sequence[Sequence[float]], overlap: float, confidence: float) -> float:
    """The same because a server has slow seconds, in which it slows all that it serves; 0 of one request at a time.

    Args:
        values: of each run its latencies in the order of time; only finite ones above 0 count.
        overlap: requests that are served at once, on average.
        confidence: of the one-sided test that will use it.
    """
    return _reach(stretches(values, overlap), confidence) if overlap > 1 else 0.0


def _reach(groups: Sequence[Sequence[float]], confidence: float) -> float:
    logs = [[log(value) for value in group if 0 < value < inf] for group in groups]
    levels = [mean(known) for known in logs if known]
    if len(levels) < 2:
        return 0.0
    return REACH * t_quantile(confidence, len(levels) - 1) * sd(levels) / sqrt(len(levels))


def _worth(clusters: Sequence[Count], allowed: float, growth: float, confidence: float, at_once: float) -> float:
    clusters = [cluster for cluster in clusters if cluster.of]
    if len(clusters) < 2:
        return 1.0
    few = t_quantile(confidence, None) / t_quantile(confidence, len(clusters) - 1)
    return few ** 2 / design_effect(clusters, allowed, growth, at_once)
