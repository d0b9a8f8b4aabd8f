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

from pytest_llmperf.stats.interval import Interval, factor, mean, sd, t_quantile


@dataclass(frozen=True, slots=True)
class StartSd:
    """The between-start sd of the logarithm of a metric.

    Args:
        value: standard deviation of the natural logarithm; 0.03 is 3 %.
        source: where the value comes from, as text; "" for a value that no sentence shows.
        df: degrees of freedom; None: the sd counts as known.
        sessions: number of stored sessions that show the sd; 0 for a sd from elsewhere.
        stored_sd: sd between these sessions, not widened; at least the prior sd between sessions.
    """

    value: float
    source: str = ""
    df: float | None = None
    sessions: int = 0
    stored_sd: float = 0.0


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
        start_sd: standard deviation between server starts, with what the starts of these pairs show.
        pair_sd: standard deviation of the pairs' differences within a start; None with one pair.
        pairs: number of pairs.
        drift: estimated part of the machine's drift in `effect`.
    """

    effect: float
    se: float
    df: float | None
    start_sd: float
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
    differences: Sequence[float], start_sd: float, *, starts: tuple[float, float] = (1, 1), apart: Sequence[int] = (),
    start_df: float | None = None, start_of: Sequence[int] = (), fitted: int = 0,
) -> PairedDifference:
    """Mean difference of paired runs; the two runs of a pair have the same seed.

    SE² = s_start² (1/starts + 1/starts) + s_pair²/k, with Satterthwaite's degrees of freedom (1946). A single pair
    gives no estimate of s_pair², so 2 s_start² replaces s_pair².

    Args:
        differences: the difference of each pair.
        start_sd: between-start sd, on the scale of the differences.
        starts: number of server starts of each side; a fraction where replicas have unequal shares of the requests.
        apart: per pair, number of runs from the second side's run to the first side's run; empty if unknown.
        start_df: degrees of freedom of `start_sd`; None: the sd counts as known.
        start_of: per pair, which start of both sides made it; empty if all pairs are of one start. The starts then
            raise or lower `start_sd` by their own spread, unless it counts as known.
        fitted: number of differences between GPUs that were removed from the pairs.

    Raises:
        ValueError: there are no pairs.
    """
    if not differences:
        raise ValueError("the mean difference needs at least 1 pair")
    pairs = len(differences)
    by_start: dict[int, list[float]] = {}
    for start, difference in zip(start_of or [0] * pairs, differences, strict=True):
        by_start.setdefault(start, []).append(difference)
    within_df, start_variance = pairs - len(by_start), start_sd**2
    pair_variance = fsum((value - mean(group)) ** 2 for group in by_start.values() for value in group) / within_df \
        if within_df else None
    between_df = len(by_start) - 1 - fitted
    if start_df is not None and between_df > 0 and pair_variance is not None:
        from_pairs = pair_variance * mean([1 / len(group) for group in by_start.values()])
        of_means = sd([mean(group) for group in by_start.values()]) ** 2 * (len(by_start) - 1) / between_df
        shown = max(0.0, of_means - from_pairs) / 2
        start_df, assumed_df = start_df + between_df, start_df
        start_variance = (assumed_df * start_variance + (start_df - assumed_df) * shown) / start_df
    of_starts = start_variance * (1 / starts[0] + 1 / starts[1])
    of_pairs = (2 * start_variance if pair_variance is None else pair_variance) / pairs
    uncertain = [(of_starts, start_df)] if start_df is not None else []
    if pair_variance is not None:
        uncertain.append((of_pairs, within_df))
    elif start_df is not None:
        uncertain = [(of_starts + of_pairs, start_df)]
    weighted = fsum(variance**2 / df for variance, df in uncertain)
    return PairedDifference(
        mean(differences), sqrt(of_starts + of_pairs), (of_starts + of_pairs) ** 2 / weighted if weighted else None,
        sqrt(start_variance), None if pair_variance is None else sqrt(pair_variance), pairs,
        _drift(differences, apart),
    )


def without_gpus(
    differences: Sequence[float], sets: Sequence[tuple[int, int]]
) -> tuple[list[float], list[float]]:
    """The differences of pairs without the difference between the GPUs of both sides, and the removed differences.

    If the sides of a pair were on GPU sets x and y, and exchanged them for as many pairs, half of the change at the
    exchange is the difference between x and y. The mean over all pairs does not change.

    Args:
        differences: the difference of each pair.
        sets: per pair, the GPU sets of the first and of the second side; empty if all runs had one set.

    Returns:
        The second list has the difference of each two sets, of the lower number to the higher one.
    """
    left, removed = list(differences), list[float]()
    for low, high in sorted({(low, high) for low, high in sets if low < high}):
        forth, back = ([value for value, placed in zip(differences, sets, strict=True) if placed == wanted]
                       for wanted in ((low, high), (high, low)))
        if not back:
            continue
        removed.append((mean(forth) - mean(back)) / 2)
        sign = {(low, high): removed[-1], (high, low): -removed[-1]}
        left = [value - sign.get(placed, 0.0) for value, placed in zip(left, sets, strict=True)]
    return left, removed


def provisional_ratio(numerators: Sequence[float], denominators: Sequence[float], start_sd: StartSd, *,
                      numerator_starts: float = 1, denominator_starts: float = 1, confidence: float = 0.99,
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
    difference = paired_difference(logs, start_sd.value, starts=(numerator_starts, denominator_starts), apart=apart,
                                   start_df=start_sd.df)
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
