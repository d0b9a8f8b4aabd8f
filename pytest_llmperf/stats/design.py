"""The effective sample size of an exceedance rate whose observations are clustered.

Requests of one run are correlated, and so are runs of one server start. The design effect is the variance of the
exceedance rate ÷ its variance for independent requests (Kish, 1965). The design effect between server starts is
estimated from the exceedance rates of the starts. The design effect within runs is estimated from the slowest changes
along the runs (`segments`), at the limit and at the upper quartile of all observations. A limit with few exceedances
gives little information about the dependence of requests; the quartile gives much more.

A design effect from few clusters is uncertain, so the effective sample size shrinks further by a ratio of t quantiles
(Korn and Graubard, 1998). If the quartile shows no dependence, the requests count as independent, without this ratio.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import pow
from typing import TYPE_CHECKING

from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.stats.interval import t_quantile
from pytest_llmperf.stats.segments import (
    PARTS,
    batches,
    cosines_for,
    dependent_above,
    independent_segments,
    slow_variance,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

#: Design effect of requests of which nothing shows whether they depend: none is over, and they have no quartile.
PRIOR_EFFECT = 1.75
#: What is known beside the requests over the limit is worth so many of them.
PRIOR_EVENTS = 4
#: Exponents of (allowed ÷ observed rate) by which the excess variance grows: a lucky low rate also looks precise.
#: Behind a queue at 85 % load (3 × 1,000 requests, p95 at its exact limit, 400 trials) 1 gives 10 % false PASS and 1.5
#: gives 5 %. Within runs it grows only where the limit itself shows dependence. Between starts it grows less where
#: their latencies bound them, too.
GROWTH_WITHIN = 1.5
GROWTH_STARTS = 1.5
GROWTH_LEVELLED_STARTS = 1.0
#: Degrees of freedom that it takes to call requests independent.
INDEPENDENCE_DF = 5
#: Above this share of observations a limit says enough about dependence by itself.
BODY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Count:
    """`over` of `of` observations are over the limit, for instance the observations of a request or of a cluster."""

    over: int
    of: int


def total(counts: Sequence[Count]) -> Count:
    return Count(sum(count.over for count in counts), sum(count.of for count in counts))


def effective_n(weights: Sequence[float]) -> float:
    """Effective sample size of weighted observations: (Σw)² ÷ Σw² (Kish, 1965), between 1 and their number.

    Raises:
        ZeroDivisionError: all weights are 0.
    """
    return sum(weights) ** 2 / sum(weight * weight for weight in weights)


def design_effect(clusters: Sequence[Count], allowed: float, growth: float, per_step: float = 1.0) -> float:
    """Variance of the exceedance rate at the allowed rate ÷ the variance for independent observations.

    Args:
        clusters: two or more clusters, e.g. the observations of each server start.
        allowed: exceedance rate at which the test decides, above 0.
        growth: exponent of (allowed ÷ observed rate) by which the excess variance grows; 0 for no growth.
        per_step: observations per event. The weight of the prior is a number of events.

    Returns:
        1 or more.
    """
    count = total(clusters)
    if count.over in (0, count.of):
        return per_step if count.over else max(per_step, PRIOR_EFFECT)
    rate, m = count.over / count.of, len(clusters)
    squares = m / (m - 1) * sum((cluster.over - rate * cluster.of) ** 2 for cluster in clusters)
    observed = squares / (rate * (1 - rate) * count.of)
    at_limit = 1 + (max(1.0, observed) - 1) * pow(max(1.0, allowed / rate), growth)
    events = count.over / per_step
    return max(1.0, (PRIOR_EVENTS * max(per_step, PRIOR_EFFECT) + events * at_limit) / (PRIOR_EVENTS + events))


@dataclass(frozen=True, slots=True)
class EffectiveFraction:
    """Effective sample size ÷ number of observations.

    Args:
        value: the fraction, above 0 and at most 1.
        bounded: whether the data can bound slow changes of the server. False if all runs have the same seed and their
            requests are shown to be dependent.
    """

    value: float
    bounded: bool = True


@dataclass(frozen=True, slots=True)
class View:
    """Counts of the observations, grouped by request or by time.

    Args:
        over: per run, its counts over the limit in order of time.
        bodies: the same counts for lower limits, each exceeded by about `BODY_SHARE` of all observations; empty without
            a lower limit.
        overlap: mean concurrency of the requests, if the observations are grouped by request; else 1.
    """

    over: Sequence[Sequence[Count]]
    bodies: Sequence[Sequence[Sequence[Count]]] = ()
    overlap: float = 1.0


def effective_fraction(
    views: Sequence[View],
    starts: Sequence[str],
    allowed: float,
    confidence: float,
    growth_starts: float = GROWTH_STARTS,
    *,
    seeds: Sequence[int] | None = None,
    per_step: float = 1.0,
    given_level: bool = False,
) -> EffectiveFraction:
    """The smallest effective fraction of all views and of the server starts.

    Runs with the same seed repeat the same requests, so their requests count only once.

    Args:
        views: groupings of the runs' observations, by request first.
        starts: server start of each run.
        allowed: exceedance rate at which the test decides.
        confidence: confidence of the one-sided test.
        growth_starts: `growth` of `design_effect` between starts.
        seeds: seed of each run; None if all seeds differ.
        per_step: mean number of observations per server step.
        given_level: whether the limit already includes a pass margin for slow changes. Then observations count as
            independent if no observation is over the limit.
    """
    seeds = range(len(starts)) if seeds is None else seeds
    within_runs = [_within_runs(view, seeds, allowed, confidence, per_step, given_level=given_level) for view in views]
    runs = [(total(run), start) for run, start in zip(views[0].over, starts, strict=True)]
    by_start = [total([run for run, start in runs if start == each]) for each in dict.fromkeys(starts)]
    clusters = [cluster for cluster in by_start if cluster.of]
    between_starts = 1.0
    if len(clusters) > 1:
        all_over = all(cluster.over == cluster.of for cluster in clusters)
        few = 1.0 if all_over else _few(confidence, len(clusters) - 1)
        between_starts = 1 / (few * design_effect(clusters, allowed, growth_starts, per_step))
    return EffectiveFraction(
        min(between_starts, *(each.value for each in within_runs)), all(each.bounded for each in within_runs)
    )


def _within_runs(view: View, seeds: Sequence[int], allowed: float, confidence: float, per_step: float, *,
                 given_level: bool) -> EffectiveFraction:
    """The effective fraction from the slowest changes along the runs."""
    draws, sent = len(set(seeds)), mean_repeats(seeds)
    segments = independent_segments(
        [of for run in view.over if (of := sum(count.of > 0 for count in run))], view.overlap
    )
    cosines = cosines_for(segments, draws)
    pooled = total([total(run) for run in view.over])
    at_limit, df = _effect(view.over, seeds, cosines)
    body_effects = [effect for body in view.bodies if (effect := _effect(body, seeds, cosines)[0]) is not None]
    measured = max(body_effects) if body_effects and pooled.over < BODY_SHARE * pooled.of else at_limit
    bound = per_step * dependent_above(df)
    independent = (given_level if measured is None else measured <= bound) and df >= INDEPENDENCE_DF
    effect = per_step if independent else max(per_step, PRIOR_EFFECT if measured is None else measured)
    if at_limit is not None:
        growth = pow(max(1.0, allowed * pooled.of / pooled.over), GROWTH_WITHIN) if at_limit > bound else 1.0
        events = pooled.over / (per_step * sent)
        grown = per_step + (at_limit - per_step) * growth
        effect = max(effect, (PRIOR_EVENTS * effect + events * grown) / (PRIOR_EVENTS + events))
    few = 1.0 if independent or pooled.over == pooled.of else _few(confidence, df)
    several_parts = draws > 1 or segments > 1
    shown = max((effect for effect in (*body_effects, measured) if effect is not None), default=0.0)
    bounded = several_parts and (draws > 1 or shown <= bound)
    return EffectiveFraction(1 / (few * effect * sent), bounded)


def _effect(runs: Sequence[Sequence[Count]], seeds: Sequence[int], cosines: int) -> tuple[float | None, int]:
    """Design effect from the slowest changes along the runs, with its degrees of freedom. The design effect is None if
    no observation or each observation is over the limit."""
    over, of = _by_seed(runs, seeds)
    draws, rate = len(over), float(over.sum() / of.sum())
    expected = (over.sum(0) / of.sum(0) if draws > 1 else rate) * of
    variance, df = slow_variance(over - expected, cosines)
    if rate in (0.0, 1.0):
        return None, df
    return draws * variance / (rate * (1 - rate) * float(of.sum()) * mean_repeats(seeds)), df


def _by_seed(runs: Sequence[Sequence[Count]], seeds: Sequence[int]) -> tuple[Array, Array]:
    """Exceedances and observations, each as a table of seeds × segments. Segments of runs with the same seed are
    summed; empty runs are left out."""
    all_counts = [([count for count in run if count.of], seed) for run, seed in zip(runs, seeds, strict=True)]
    run_counts = [(counts, seed) for counts, seed in all_counts if counts]
    parts = min(PARTS, *(len(counts) for counts, _ in run_counts), PARTS)
    rows: dict[int, Array] = {}
    for counts, seed in run_counts:
        totals = [total(part) for part in batches(counts, parts)]
        rows[seed] = rows.get(seed, np.zeros((2, parts))) + np.array([[part.over, part.of] for part in totals]).T
    stacked = np.stack(list(rows.values()))
    return stacked[:, 0], stacked[:, 1]


def _few(confidence: float, df: int) -> float:
    """Factor on the number of observations, because an estimate of the design effect with few degrees of freedom is
    uncertain."""
    return (t_quantile(confidence, df) / t_quantile(confidence, None)) ** 2


def mean_repeats(seeds: Sequence[int]) -> float:
    """Mean number of runs with the same seed, averaged over the runs (Kish's weights); at least 1."""
    return sum(count**2 for count in Counter(seeds).values()) / len(seeds)
