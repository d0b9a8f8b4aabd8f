"""Where a series becomes steady: MSER-5 (White, 1997; White, Cobb and Spratt, 2000).

Of all beginnings that could be cut off, MSER takes the one that leaves the mean of the rest most precise:
the smallest Σ (z − z̄)² / n² over what is left, here of means of five observations each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, sqrt

from pytest_llmperf.stats.mean import mean

BATCH = 5
#: More than this share of a run is not warm-up.
MOST = 0.3
_FEWEST_BATCHES = 10


@dataclass(frozen=True, slots=True)
class Truncation:
    """Where MSER cuts.

    Args:
        discard: leading observations to leave out.
        of: observations.
        step: how much the series still moves after `LARGEST_MARGIN` of it: mean from there to the cut, less the mean
            after the cut, over the latter; 0 where the cut comes earlier.
        step_se: of `step`, with the autocorrelation of successive batches.
    """

    discard: int
    of: int
    step: float
    step_se: float

    def steady(self, tolerated: float = 0.05, errors: float = 6.0) -> bool:
        """False where the series still moves by more than `tolerated` and by more than `errors` standard errors.

        A late cut alone proves nothing: of 100 requests MSER cuts more than 30 % off one series in eight that is steady
        all along.
        """
        return abs(self.step) <= max(tolerated, errors * self.step_se)


def mser(series: Sequence[float], batch: int = BATCH) -> Truncation:
    """Cut at most half of the series: what few batches are left are alike by chance.

    Args:
        series: observations in the order of time, e.g. of each request.
        batch: observations per mean; a rest that does not fill one is left out.

    Raises:
        ValueError: fewer than ten batches.
    """
    count = len(series) // batch
    if count < _FEWEST_BATCHES:
        raise ValueError(f"{len(series)} observations are too few to see whether they are steady, "
                         f"{_FEWEST_BATCHES * batch} are needed")
    means = [mean(series[i * batch:(i + 1) * batch]) for i in range(count)]
    cut = min(range(count // 2 + 1), key=lambda start: _mser(means[start:]))
    early, late = means[floor(MOST * count):cut], means[cut:]
    if not early:
        return Truncation(cut * batch, len(series), 0.0, 0.0)
    level = mean(late)
    rest = _detrended(late)
    variance = _squares(rest) / (len(rest) - 2) * (1 / len(early) + 1 / len(late))
    alike = min(0.9, max(0.0, _autocorrelation(rest)))
    error = sqrt(variance * (1 + alike) / (1 - alike))
    return Truncation(cut * batch, len(series), (mean(early) - level) / level, error / abs(level))


def _mser(rest: Sequence[float]) -> float:
    return _squares(rest) / len(rest) ** 2


def _detrended(values: Sequence[float]) -> list[float]:
    """Less the straight line through them: a ramp is no noise."""
    middle, centre = (len(values) - 1) / 2, mean(values)
    squares = sum((i - middle) ** 2 for i in range(len(values)))
    slope = sum((i - middle) * value for i, value in enumerate(values)) / squares
    return [value - centre - slope * (i - middle) for i, value in enumerate(values)]


def _autocorrelation(values: Sequence[float]) -> float:
    """Of neighbours around a mean of 0; 0 where nothing varies."""
    squares = sum(value**2 for value in values)
    return sum(value * other for value, other in pairwise(values)) / squares if squares else 0.0


def _squares(values: Sequence[float]) -> float:
    centre = mean(values)
    return sum((value - centre) ** 2 for value in values)
