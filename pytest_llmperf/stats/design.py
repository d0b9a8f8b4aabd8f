"""How much a clustered observation is worth: the effective sample size of an exceedance rate.

Requests of one run, and runs of one server start, resemble each other. The variance of the exceedance rate between
clusters, over that of independent requests, is the design effect (Kish, 1965); few clusters know it badly, so the
effective size shrinks further by a ratio of t quantiles (Korn and Graubard, 1998).

Choices were made by simulation at the exact limit (AR(1) of 0.6 within runs, starts shifted by up to one sd): the
prior, which speaks where few or no requests are over and the estimate means nothing, and the growth of the excess
variance from the observed rate up to the allowed one, without which a lucky low rate also looks precise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import pow

from pytest_llmperf.stats.mean import t_quantile
from pytest_llmperf.stats.stretches import places, stretches

#: Design effect of one server's requests before any was seen to be over, worth so many requests over.
PRIOR_EFFECT = 1.75
PRIOR_EVENTS = 4
#: Exponents of (allowed ÷ observed rate) by which the excess variance grows; between starts more where counts are all
#: that is known of them.
GROWTH_BATCHES = 0.5
GROWTH_STARTS = 1.5
GROWTH_LEVELLED_STARTS = 1.0


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


def design_effect(strata: Sequence[Sequence[Count]], allowed: float, growth: float, at_once: float = 1.0,
                  repeats: float = 1.0) -> float:
    """Variance of the exceedance rate, at the allowed rate, over that of independent observations; at least 1.

    Args:
        strata: clusters that are compared with each other, two or more of them somewhere.
        allowed: rate at which the test decides, above 0.
        growth: exponent of (allowed ÷ observed) on the excess variance; 0 for none.
        at_once: observations that one event brings; the prior is of events.
        repeats: how often each observation's request was sent; the answer is of those that differ.
    """
    both = total([cluster for stratum in strata for cluster in stratum])
    if both.over in (0, both.of):
        return at_once if both.over else max(at_once, PRIOR_EFFECT)
    rate = both.over / both.of
    observed = sum(map(_squares, strata)) / (rate * (1 - rate) * both.of * repeats)
    at_limit = 1 + (max(1.0, observed) - 1) * pow(max(1.0, allowed / rate), growth)
    events = both.over / (at_once * repeats)
    return max(1.0, (PRIOR_EVENTS * max(at_once, PRIOR_EFFECT) + events * at_limit) / (PRIOR_EVENTS + events))


def worth(runs: Sequence[Sequence[Count]], starts: Sequence[str], allowed: float, confidence: float,
          growth_starts: float = GROWTH_STARTS, *, seeds: Sequence[int] | None = None,
          in_time: Sequence[Sequence[Count]] = (), at_once: float = 1.0, overlap: float = 1.0) -> float:
    """Effective observations per observation, above 0 and at most 1: the smallest of batches', stretches', starts'.

    Requests that were sent again are one draw of the traffic, however often: they are worth their number once.

    Args:
        runs: of each run its requests in the order of time.
        starts: of each run the server start that it ran on.
        allowed: exceedance rate in question.
        confidence: of the one-sided test that will use it.
        growth_starts: as `growth` of `design_effect`, between starts.
        seeds: of each run that of its requests; None: all differ.
        in_time: of each run its stretches of time, equally many, where one request brings many observations and others
            the same ones at the same time; none: the order of requests says all.
        at_once: observations that one moment brings, on average.
        overlap: requests that are served at once, on average.
    """
    seeds = range(len(runs)) if seeds is None else seeds
    several = repeats(seeds)
    counted = [[count for count in run if count.of] for run in runs]
    by_batch = places(stretches(counted, seeds, overlap), seeds)
    by_time = places([[[part] for part in run] for run in in_time], seeds) if in_time else []
    by_start = [[count for run, start in zip(runs, starts, strict=True) if start == one for count in run]
                for one in dict.fromkeys(starts)]

    def of(strata: Sequence[Sequence[Sequence[Count]]], growth: float, sent: float) -> float:
        counts = [[both for part in stratum if (both := total(part)).of] for stratum in strata]
        if not (freedom := sum(max(0, len(stratum) - 1) for stratum in counts)):
            return 1 / sent
        all_over = all(count.over == count.of for stratum in counts for count in stratum)
        few = 1.0 if all_over else t_quantile(confidence, None) / t_quantile(confidence, freedom)
        return few ** 2 / design_effect(counts, allowed, growth, at_once, sent) / sent

    return min(of(by_batch, GROWTH_BATCHES, several), of(by_time, GROWTH_BATCHES, several),
               of([by_start], growth_starts, 1.0))


def repeats(seeds: Sequence[int]) -> float:
    """How often the seed of a run was sent, averaged over the runs (Kish's weights); at least 1."""
    return sum(count**2 for count in Counter(seeds).values()) / len(seeds)


def _squares(stratum: Sequence[Count]) -> float:
    """Of the clusters' numbers over the limit, around what the stratum's rate expects; 0 of a single cluster."""
    if (m := len(stratum)) < 2:
        return 0.0
    rate = total(stratum).over / total(stratum).of
    return m / (m - 1) * sum((cluster.over - rate * cluster.of) ** 2 for cluster in stratum)
