"""Checks whether successive runs of one server start, each with its own seed, have one level.

Runs with different seeds have different requests, so their means differ by chance. This chance variation is estimated
within the runs. Each run is cut into ten segments of successive requests. The residual of a segment is its mean without
the mean of its run and without the mean of segment k over all runs (two-way analysis of variance). The mean of segment
k contains the effects of the workload: the ramp-up, the tail, and conversations that grow.

Runs of a noisy host differ, too. Stored sessions show that noise. Without stored sessions the runs themselves must show
that their host is quiet: a change counts if it is many standard errors of what the change leaves over. Three runs show
little of their noise, so smaller changes do not count. `scripts/simulate_verdicts.py steadiness` has the error rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum, hypot, inf, log, log1p, sqrt

from pytest_llmperf.lazy import special
from pytest_llmperf.stats.interval import mean, sd, t_quantile
from pytest_llmperf.stats.priors import Prior
from pytest_llmperf.stats.shift import satterthwaite


@dataclass(frozen=True, slots=True)
class Drift:
    """A straight line through successive runs.

    Args:
        total: rise of the line from the first run to the last run, on the scale of the values; negative for a fall.
        p: two-sided p value under no drift.
    """

    total: float
    p: float

    def steady(self, tolerated: float, alpha: float = 0.001) -> bool:
        """False if the runs are proven to drift, and by more than `tolerated` in all."""
        return abs(self.total) <= tolerated or self.p > alpha


def drift(values: Sequence[float], sd: float, df: float = inf) -> Drift:
    """Least squares through equidistant runs, whose noise is known from elsewhere.

    Args:
        values: value of each run in the order of time, on a scale with additive errors. Differences from a baseline of
            the same seeds are best; for other values `sd` must include the sd between seeds.
        sd: sd of one value.
        df: degrees of freedom of `sd`.

    Raises:
        ValueError: fewer than three runs, or no sd above 0.
    """
    if len(values) < 3 or sd <= 0:
        raise ValueError(f"{len(values)} runs with an sd of {sd:g} show no drift, 3 are needed")
    middle = (len(values) - 1) / 2
    squares = fsum((i - middle) ** 2 for i in range(len(values)))
    centre = mean(values)
    slope = fsum((i - middle) * (value - centre) for i, value in enumerate(values)) / squares
    return Drift(slope * (len(values) - 1), 2 * float(special.stdtr(df, -abs(slope) * sqrt(squares) / sd)))


SEGMENTS = 10
#: Segments of the first fifth of a run.
BEGINNING = 2
FEWEST_RUNS = 3
#: Runs may differ by twice what the prior says: an ERROR must not come from a machine that is merely noisy.
CAUTION = 2.0
#: Confidence with which a change must exceed what it leaves over of the differences between runs. Three runs leave one
#: degree of freedom, so their change must be 21 of its standard errors. Of slow first runs `SLOW_FIRST_ERRORS` suffice.
QUIET = 0.985
SLOW_FIRST_ERRORS = 8.0
#: Smallest changes that count where no stored session shows the noise: of slow first runs, of a line that falls, and of
#: any other pattern. Chosen with `QUIET` for at most 1 % of false alarms at a run sd of 3.5 %.
SLOW_FIRST, FALL, CHANGE = log1p(0.09), log1p(0.105), log1p(0.16)
#: A change that no noise of a host explains, whatever the runs leave over.
GROSS = log1p(0.19)


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of level along the runs of a server start.

    Args:
        total: the change from earlier to later runs, on the log scale; negative for a fall.
        p: two-sided p value under no change.
        first: number of runs before the change; None for a straight line through all runs.
        beginning: whether it is the first fifth of the first run that differs from that of the other runs.
    """

    total: float
    p: float
    first: int | None = None
    beginning: bool = False


def level_change(
    runs: Sequence[Sequence[float]], prior: Prior, tolerated: float, alpha: float, *, known: bool = False
) -> LevelChange | None:
    """The first change that shows that the runs are not steady; None for steady runs.

    Args:
        runs: runs in the order of time, each with a positive value per request in send order, e.g. the TPOT.
        prior: prior for the sd between runs of the same seed.
        tolerated: smallest change that counts, on the log scale.
        alpha: largest p value that counts.
        known: whether stored sessions show the sd between runs, so that the runs themselves need not.
    """
    if len(runs) < 2 or min(map(len, runs)) < SEGMENTS:
        return None
    segments = [_segments([log(value) for value in run]) for run in runs]
    if (slow := _slow_beginning(segments, tolerated, alpha)) is not None:
        return slow
    return next((change for change, least in _changes(segments, prior, known=known)
                 if abs(change.total) > max(tolerated, least) and change.p <= alpha), None)


def _changes(
    segments: Sequence[Sequence[float]], prior: Prior, *, known: bool
) -> Iterator[tuple[LevelChange, float]]:
    """A straight line, and each step between two runs, with the smallest change that counts."""
    if len(segments) < FEWEST_RUNS:
        return
    levels, within, df = list(map(mean, segments)), *_within(segments)
    noise = hypot(sqrt(within), CAUTION * prior.run_sd)
    df_of_noise = satterthwaite([(within, df), ((CAUTION * prior.run_sd) ** 2, prior.df)])
    line, count = drift(levels, noise, df_of_noise), len(levels)
    slope, middle = line.total / (count - 1), (count - 1) / 2
    left_over = sqrt(fsum((level - mean(levels) - slope * (place - middle)) ** 2
                          for place, level in enumerate(levels)) / (count - 2))
    error = left_over * sqrt(12 * (count - 1) / count / (count + 1))
    yield (LevelChange(line.total, line.p),
           0.0 if known else min(GROSS, _least(line.total, _errors(count - 2) * error, FALL)))
    for first in range(1, count):
        before, after = levels[:first], levels[first:]
        step, unit = mean(after) - mean(before), sqrt(1 / first + 1 / (count - first))
        of_noise = before if first > count - first else after
        errors, slow_first = _errors(len(of_noise) - 1), step < 0 and first <= count // 2
        shown = (min(errors, SLOW_FIRST_ERRORS) if slow_first else errors) * sd(of_noise) * unit
        yield (LevelChange(step, _p(step, noise * unit, df_of_noise), first),
               0.0 if known else _least(step, shown, SLOW_FIRST if slow_first else CHANGE))


def _errors(df: int) -> float:
    """Standard errors, from so many degrees of freedom, that a change must exceed."""
    return t_quantile(QUIET, df)


def _least(change: float, shown: float, fall: float) -> float:
    """Smallest size at which a change makes runs unsteady if it exceeds `shown`: `fall` where later runs are faster."""
    if abs(change) <= shown:
        return inf
    return fall if change < 0 else CHANGE


def _slow_beginning(segments: Sequence[Sequence[float]], tolerated: float, alpha: float) -> LevelChange | None:
    """The first fifth of the first run, if it is slower than that of the other runs and raises the mean of its run by
    more than the tolerated margin. The other segments of all runs show the noise.
    """
    if len(segments) < FEWEST_RUNS:  # two runs of an overloaded server differ, because the queue grows
        return None
    excess = [mean(run[:BEGINNING]) - mean(run[BEGINNING:]) for run in segments]
    total = mean(excess[1:]) - excess[0]
    within, df = _within([run[BEGINNING:] for run in segments])
    # A slow server makes neighbouring segments alike, so those of the beginning count as one.
    error = sqrt(within * (SEGMENTS - BEGINNING + 1) * (1 + 1 / (len(segments) - 1)))
    p = _p(total, error, df) if error else 0.0
    if -total * BEGINNING / SEGMENTS <= tolerated or p > alpha:
        return None
    return LevelChange(total, p, beginning=True)


def _p(change: float, error: float, df: float) -> float:
    """Two-sided p value of Student's test."""
    return 2 * float(special.stdtr(df, -abs(change) / error))


def _within(segments: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Variance of a run's mean from the residuals of its segments, with its degrees of freedom."""
    levels, positions = list(map(mean, segments)), [mean(of_position) for of_position in zip(*segments, strict=True)]
    whole = mean(levels)
    squares = fsum((value - level - position + whole) ** 2
                   for of_run, level in zip(segments, levels, strict=True)
                   for value, position in zip(of_run, positions, strict=True))
    df = (len(positions) - 1) * (len(segments) - 1)
    return squares / df / len(positions), df


def _segments(values: Sequence[float]) -> list[float]:
    """Means of the ten segments of a run, whose sizes differ by at most one request."""
    bounds = [round(part * len(values) / SEGMENTS) for part in range(SEGMENTS + 1)]
    return [mean(values[start:end]) for start, end in pairwise(bounds)]
