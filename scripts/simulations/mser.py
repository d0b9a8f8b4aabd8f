"""Where a series becomes steady: MSER-5 (White, 1997; White, Cobb and Spratt, 2000).

Of all beginnings that could be cut off, MSER takes the one that leaves the mean of the rest most precise:
the smallest Σ (z − z̄)² / n² over what is left, here of means of five observations each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.signal import detrend

BATCH, FEWEST_BATCHES = 5, 10
#: More than this share of a run is not warm-up.
MOST = 0.3


@dataclass(frozen=True, slots=True)
class Truncation:
    """Where MSER cuts.

    Args:
        discard: leading observations to leave out.
        step: how much the series still moves after `MOST` of it: mean from there to the cut, less the mean after the
            cut, over the latter; 0 where the cut comes earlier.
        step_se: of `step`, with the autocorrelation of successive batches.
    """

    discard: int
    step: float = 0.0
    step_se: float = 0.0

    def steady(self, tolerated: float = 0.05, errors: float = 6.0) -> bool:
        """False where the series still moves by more than `tolerated` and by more than `errors` standard errors.

        A late cut alone proves nothing: of 100 requests MSER cuts more than 30 % off one series in eight that is steady
        all along.
        """
        return abs(self.step) <= max(tolerated, errors * self.step_se)


def mser(series: Sequence[float]) -> Truncation:
    """Cut at most half of the series: the few batches that would be left are alike by chance.

    Args:
        series: observations in the order of time, e.g. of each request.

    Raises:
        ValueError: fewer than ten batches.
    """
    count = len(series) // BATCH
    if count < FEWEST_BATCHES:
        raise ValueError(f"{len(series)} observations are too few to see whether they are steady, "
                         f"{FEWEST_BATCHES * BATCH} are needed")
    means = np.reshape(series[:count * BATCH], (count, BATCH)).mean(1)
    cut = int(np.argmin([means[start:].var() / (count - start) for start in range(count // 2 + 1)]))
    early, late = means[int(MOST * count):cut], means[cut:]
    if not early.size:
        return Truncation(cut * BATCH)
    rest = detrend(late)  # a ramp is no noise
    squares = float(rest @ rest)
    variance = squares / (len(rest) - 2) * (1 / len(early) + 1 / len(late))
    alike = np.clip(rest[1:] @ rest[:-1] / squares if squares else 0.0, 0.0, 0.9)
    error, level = np.sqrt(variance * (1 + alike) / (1 - alike)), late.mean()
    return Truncation(cut * BATCH, float(early.mean() / level - 1), float(error / abs(level)))
