"""Change points of a series of sessions: each lasting change of the level, with size and confidence interval.

A session is one number, the mean of its runs on the metric's scale. After each session a t test compares the last 2, 4,
8 and 16 sessions with the sessions before them, back to the last change point. The variance of the t test is the pooled
variance of all sessions around the mean of their level. One disturbed session makes no change point: each of the
compared last sessions must show a quarter of the change, and if two are compared, each must show half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import fmean

from pytest_llmperf.stats.interval import t_quantile

#: Number of compared last sessions → false-alarm probability of one test for a worse level, and for a better level.
#: Simulated (scripts/simulate_verdicts.py change_points), a series of five sessions a week with normal noise has about
#: one false alarm in 1,000 weeks, and up to five with heavy tails.
LOOKS = {2: (1.4e-4, 0.02e-4), 4: (0.05e-4, 0.02e-4), 8: (0.05e-4, 0.02e-4), 16: (0.05e-4, 0.02e-4)}
#: Fewest sessions before a change, and fewest degrees of freedom of the sd, for a test.
FEWEST_BEFORE, FEWEST_DF = 3, 8
#: A smaller sd between sessions counts as this sd: 0.05 %.
SMALLEST_SD = 0.0005
#: Share of the change that each of the compared last sessions must show; if two are compared, each must show half.
SHOWN_BY_EACH = 0.25
POWER, CONFIDENCE = 0.9, 0.975


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """One change of the level.

    Args:
        at: index in the series, from 0, of the first session with the new level.
        found: index of the session after which the change was proven.
        shift: new level less old level on the metric's scale, from all sessions of both levels; above 0 is worse.
        low, high: 95 % confidence interval of the shift.
    """

    at: int
    found: int
    shift: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Changes:
    """The change points of a series.

    Args:
        points: oldest first.
        sd: sd between sessions at a constant level; None if each level has one session.
        df: degrees of freedom of `sd`.
        sessions: number of sessions since the last change point.
    """

    points: tuple[ChangePoint, ...]
    sd: float | None
    df: int
    sessions: int

    def sessions_needed(self, shift: float) -> int | None:
        """Number of sessions at a worse level with which the change is found in nine of ten cases.

        None means that 16 sessions do not suffice, or that the series has too few sessions to tell.

        Args:
            shift: on the metric's scale.
        """
        if self.sd is None or self.df < FEWEST_DF or self.sessions < FEWEST_BEFORE:
            return None
        sd = max(self.sd, SMALLEST_SD)
        for after, (worse, _) in LOOKS.items():
            se = sd * (1 / after + 1 / self.sessions) ** 0.5
            if shift >= (_threshold(worse, self.df + after - 1) + t_quantile(POWER, None)) * se:
                return after
        return None


def changes(levels: Sequence[float]) -> Changes:
    """The change points of a series.

    Args:
        levels: mean of each session on the metric's scale, where larger is worse, oldest first; at least one.
    """
    starts, found, squares, df = [0], list[int](), 0.0, 0  # squares and df of the levels before
    for end in range(1, len(levels) + 1):
        at = _look(levels[starts[-1]:end], squares, df)
        if at is not None:
            squares, df = squares + _squares(levels[starts[-1]:starts[-1] + at]), df + at - 1
            starts.append(starts[-1] + at)
            found.append(end - 1)
    for number in range(1, len(starts)):  # later sessions show better where the change was
        first, end = starts[number - 1], [*starts, len(levels)][number + 1]
        starts[number] = _best_split(levels, first, end)
    spans = [levels[first:end] for first, end in pairwise([*starts, len(levels)])]
    squares, df = sum(map(_squares, spans)), len(levels) - len(spans)
    sd, points = (squares / df) ** 0.5 if df else None, list[ChangePoint]()
    for at, proven, (before, after) in zip(starts[1:], found, pairwise(spans), strict=True):
        se = max(sd or 0.0, SMALLEST_SD) * (1 / len(before) + 1 / len(after)) ** 0.5
        shift, half = fmean(after) - fmean(before), t_quantile(CONFIDENCE, df) * se
        points.append(ChangePoint(at, proven, shift, shift - half, shift + half))
    return Changes(tuple(points), sd, df, len(spans[-1]))


def _best_split(levels: Sequence[float], first: int, end: int) -> int:
    """Index of the first session after the best split: the split with the largest sum of squares between levels."""
    def between(at: int) -> float:
        before, after = levels[first:at], levels[at:end]
        return (fmean(after) - fmean(before)) ** 2 * len(before) * len(after)

    return max(range(first + 1, end), key=between)


def _look(levels: Sequence[float], squares: float, df: int) -> int | None:
    """Index in `levels` of the first session after a proven change; None without a change.

    Args:
        squares, df: sum of squares of earlier levels around their means, with its degrees of freedom.
    """
    for after, (worse, better) in LOOKS.items():
        before, now = levels[:-after], levels[-after:]
        total_df = df + len(levels) - 2
        if len(before) < FEWEST_BEFORE or total_df < FEWEST_DF:
            return None
        old = fmean(before)
        shift = fmean(now) - old
        variance = max((squares + _squares(before) + _squares(now)) / total_df, SMALLEST_SD**2)
        se = (variance * (1 / after + 1 / len(before))) ** 0.5
        proven = abs(shift) > _threshold(worse if shift > 0 else better, total_df) * se
        if proven and min((level - old) / shift for level in now) >= max(SHOWN_BY_EACH, 1 / after):
            return len(before)
    return None


def _squares(levels: Sequence[float]) -> float:
    centre = fmean(levels)
    return sum((level - centre) ** 2 for level in levels)


@cache
def _threshold(error: float, df: int) -> float:
    return t_quantile(1 - error, df)
