"""Bisection among 64 builds: share of right answers and number of pairs, on simulated builds with a known change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log1p

import numpy as np

from pytest_llmperf.experiments.bisection import MOST_OF_BUILD
from pytest_llmperf.stats.bisection_posterior import ChangePosterior, Comparison
from simulations.tables import Table, heading, percent, row, share_of

BUILDS, CHANGE = 64, 0.03
#: Sd of a server start and of a pair's difference, on the logarithm.
NOISES = ((0.0018, 0.003), (0.0036, 0.003), (0.005, 0.01), (0.005, 0.02))
#: Pairs of one comparison of the search, and of the first comparison of both ends.
PAIRS, PAIRS_OF_ENDS = 3, 8
#: Start sd that the search expects.
START_SD = 0.0018
Levels = Sequence[float]


def compared(
    levels: Levels, build: int, pairs: int, noise: tuple[float, float], rng: np.random.Generator
) -> Comparison:
    """A comparison of a build with the first build, on a start of each."""
    start_sd, pair_sd = noise
    differences = levels[build] - levels[0] + rng.normal(0, start_sd * 2**0.5) + rng.normal(0, pair_sd, pairs)
    return Comparison(build, tuple(map(float, differences)))


def searched(levels: Levels, noise: tuple[float, float], rng: np.random.Generator) -> tuple[ChangePosterior, int]:
    """The posterior at the end of the search, and its pairs."""
    comparisons, pairs = [compared(levels, BUILDS - 1, PAIRS_OF_ENDS, noise, rng)], PAIRS_OF_ENDS
    while True:
        posterior = ChangePosterior(BUILDS, comparisons, abs(comparisons[0].effect), START_SD)
        counts = [sum(each.build == build for each in comparisons) for build in range(BUILDS)]
        build = posterior.next_build([build for build, count in enumerate(counts) if count >= MOST_OF_BUILD])
        if build is None:
            return posterior, pairs
        comparisons.append(compared(levels, build, PAIRS, noise, rng))
        pairs += PAIRS


def plain(levels: Levels, repeats: int, noise: tuple[float, float], rng: np.random.Generator) -> tuple[int, int]:
    """Bisection with a fixed number of pairs: above half of the ends' difference a build counts as slow."""
    limit = compared(levels, BUILDS - 1, PAIRS_OF_ENDS, noise, rng).effect / 2
    low, high, pairs = 0, BUILDS - 1, PAIRS_OF_ENDS
    while high - low > 1:
        middle, pairs = (low + high) // 2, pairs + repeats
        low, high = (low, middle) if compared(levels, middle, repeats, noise, rng).effect > limit else (middle, high)
    return high, pairs


def levels_of(*places: int) -> Levels:
    """Log levels of the builds: a step of `CHANGE` at each place."""
    return [sum(log1p(CHANGE) for place in places if build >= place) for build in range(BUILDS)]


def bisect_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """One change at each of the 63 places, then two changes."""
    each_place = max(1, trials // (BUILDS - 1))
    places = [place for place in range(1, BUILDS) for _ in range(each_place)]
    yield from heading(f"Bisection of {BUILDS} builds, one change of +{percent(CHANGE)}", "start sd", "pair sd",
                       "method", "right place", "mean pairs")
    for noise in NOISES:
        ends = [(searched(levels_of(place), noise, rng), place) for place in places]
        yield row(*map(percent, noise), "llmperf bisect",
                  share_of(list(posterior.culprits) == [place] for (posterior, _), place in ends),
                  f"{np.mean([pairs for (_, pairs), _ in ends]):.1f}")
        for repeats in (3, 5, 8, 16):
            found = [(plain(levels_of(place), repeats, noise, rng), place) for place in places]
            yield row(*map(percent, noise), f"plain, {repeats} pairs a build",
                      share_of(culprit == place for (culprit, _), place in found),
                      f"{np.mean([pairs for (_, pairs), _ in found]):.1f}")
    yield from heading("Two changes of the same size", "start sd", "pair sd", "named place is one of them",
                       "second change stated", "mean pairs")
    for noise in NOISES:
        pairs_of_places = [sorted(rng.choice(np.arange(1, BUILDS), 2, replace=False)) for _ in places]
        both = [(searched(levels_of(*two), noise, rng), two) for two in pairs_of_places]
        yield row(*map(percent, noise), share_of(posterior.culprits.stop - 1 in two for (posterior, _), two in both),
                  share_of(posterior.two_changes > 0.5 for (posterior, _), _ in both),
                  f"{np.mean([pairs for (_, pairs), _ in both]):.1f}")


TABLES: dict[str, Table] = {"bisect": bisect_table}
