"""A against B in one session, from few pairs: a screen that borrows the between-start sd from a prior.

A machine that gets slower from run to run makes the side that is measured last look slower. If pairs differ in how many
runs lie between their two runs, the pairs show that drift: a straight line through the log ratios over the distance.
The interval then contains the ratio as measured and the ratio without the drift. False PASS at the exact limit with a
drift of 5 % a run, TPOT: 80 % without this, below 0.02 % with it (`scripts/simulate_verdicts.py drift`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, log, sqrt

from pytest_llmperf.stats.interval import Interval, factor
from pytest_llmperf.stats.mean import mean, sd, t_quantile


@dataclass(frozen=True, slots=True)
class StartSd:
    """How much a metric's logarithm moves from one server start to the next.

    Args:
        value: standard deviation of the natural logarithm; 0.03 is 3 %.
        source: where the value comes from, as text; "" for a value that no sentence shows.
    """

    value: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class ProvisionalRatio:
    """A ratio of two sides with its limits.

    Args:
        ratio: geometric mean over the pairs.
        interval: of the ratio, each limit one-sided.
        start_sd: prior for the between-start sd.
        pair_sd: standard deviation of the pairs' log ratios; None for a single pair, which uses the prior instead.
        pairs: number of pairs.
        drift: estimated effect of the machine's drift on the logarithm of the ratio.
    """

    ratio: float
    interval: Interval
    start_sd: StartSd
    pair_sd: float | None
    pairs: int
    drift: float = 0.0


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean difference of paired values of two sides, and how well it is known.

    Args:
        effect: the mean difference.
        se: standard error of the mean difference, with the between-start sd.
        df: Satterthwaite's degrees of freedom; None if the sd counts as known.
        pair_sd: standard deviation of the pairs' differences; None with one pair.
        pairs: number of pairs.
        drift: estimated part of the machine's drift in `effect`.
    """

    effect: float
    se: float
    df: float | None
    pair_sd: float | None
    pairs: int
    drift: float

    def lower(self, confidence: float) -> float:
        """One-sided lower limit of the difference as measured and of the difference without the drift."""
        return min(self.effect, self.effect - self.drift) - t_quantile(confidence, self.df) * self.se

    def upper(self, confidence: float) -> float:
        """One-sided upper limit of the difference as measured and of the difference without the drift."""
        return max(self.effect, self.effect - self.drift) + t_quantile(confidence, self.df) * self.se


def paired_difference(
    differences: Sequence[float], start_sd: float, *, starts: tuple[int, int] = (1, 1), apart: Sequence[int] = ()
) -> PairedDifference:
    """Mean difference of paired runs; the two runs of a pair have the same seed.

    SE² = s_start² (1/starts + 1/starts) + s_pair²/k. The prior counts as known; the degrees of freedom of the pairs
    enter by Satterthwaite's formula (1946). A single pair gives no estimate of s_pair², so 2 s_start² replaces s_pair².

    Args:
        differences: the difference of each pair.
        start_sd: between-start sd, on the scale of the differences.
        starts: number of server starts of each side.
        apart: per pair, number of runs from the second side's run to the first side's run; empty if unknown.

    Raises:
        ValueError: there are no pairs.
    """
    if not differences:
        raise ValueError("the mean difference needs at least 1 pair")
    pairs = len(differences)
    pair_sd = sd(differences) if pairs > 1 else None
    from_starts = start_sd**2 * (1 / starts[0] + 1 / starts[1])
    from_pairs = (2 * start_sd**2 if pair_sd is None else pair_sd**2) / pairs
    df = (from_starts + from_pairs) ** 2 * (pairs - 1) / from_pairs**2 if pair_sd else None
    return PairedDifference(
        mean(differences), sqrt(from_starts + from_pairs), df, pair_sd, pairs, _drift(differences, apart)
    )


def provisional_ratio(numerators: Sequence[float], denominators: Sequence[float], start_sd: StartSd, *,
                      numerator_starts: int = 1, denominator_starts: int = 1, confidence: float = 0.99,
                      apart: Sequence[int] = ()) -> ProvisionalRatio:
    """Ratio of paired values, the same workload and seed in each pair: `paired_difference` of their logarithms.

    Args:
        numerators, denominators: the two values of each pair.
        start_sd: prior for the between-start sd.
        numerator_starts, denominator_starts: number of server starts of each side.
        confidence: one-sided confidence of each limit.
        apart: per pair, number of runs from the denominator's run to the numerator's run; empty if unknown.

    Raises:
        ValueError: there are no pairs, the sides have different numbers of values, or a value is not above 0.
    """
    if not numerators or len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} values on one side and {len(denominators)} on the other make no pairs")
    if min(*numerators, *denominators) <= 0:
        raise ValueError("a ratio needs values above 0")
    logs = [log(top / bottom) for top, bottom in zip(numerators, denominators, strict=True)]
    difference = paired_difference(logs, start_sd.value, starts=(numerator_starts, denominator_starts), apart=apart)
    limits = Interval(factor(difference.lower(confidence)), factor(difference.upper(confidence)), confidence)
    return ProvisionalRatio(
        factor(difference.effect), limits, start_sd, difference.pair_sd, difference.pairs, difference.drift
    )


def _drift(logs: Sequence[float], apart: Sequence[int]) -> float:
    """What a drift that is linear in runs adds to the mean log ratio; 0 where all pairs are equally far apart."""
    if not apart:
        return 0.0
    mean_distance = mean(apart)
    squares = fsum((distance - mean_distance) ** 2 for distance in apart)
    if not squares:
        return 0.0
    slope = fsum((distance - mean_distance) * value for distance, value in zip(apart, logs, strict=True)) / squares
    return slope * mean_distance
