"""Which seeds ran in which session, and what least squares make of it.

Value of a run = its seed's level + its session's level + noise. Session 0 is today's; seeds cancel wherever today's
and a stored session share them, however often each ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Linear maps from the runs' values (today's first, then session after session), and their variances.

    Args:
        sessions: stored ones.
        effect: n weights: today's level less the mean of the stored sessions' levels.
        levels: sessions × n weights: each stored session's level less their mean.
        leftover: n × n: what seeds and sessions do not explain.
        effect_runs: variance of the effect per variance of a run.
        levels_runs: mean variance of the levels per variance of a run, as in a mean square with sessions − 1 below.
        leftover_df: degrees of freedom of the leftover.
    """

    sessions: int
    effect: Array
    levels: Array
    leftover: Array
    effect_runs: float
    levels_runs: float
    leftover_df: int

    def differ(self, values: Array) -> Array:
        """The effect; `values` has the runs in its last axis, like the methods below."""
        return np.asarray(values @ self.effect)

    def run_squares(self, values: Array) -> Array:
        """Sum of squares with `leftover_df` degrees of freedom."""
        return np.asarray(np.square(values @ self.leftover).sum(-1))

    def session_squares(self, values: Array) -> Array:
        """Sum of squares with sessions − 1 degrees of freedom."""
        return np.asarray(np.square(values @ self.levels.T).sum(-1))


@lru_cache(maxsize=256)
def layout(fresh: tuple[int, ...], stored: tuple[tuple[int, ...], ...]) -> Layout:
    """The layout of today's seeds and of each stored session's.

    Raises:
        ValueError: a stored session shares no seed with today's.
    """
    if not stored or any(not set(fresh) & set(session) for session in stored):
        raise ValueError(f"no seed of today's runs ({fresh}) in each of the stored sessions ({stored})")
    runs = [(0, seed) for seed in fresh]
    runs += [(number, seed) for number, session in enumerate(stored, 1) for seed in session]
    seeds = sorted({seed for _, seed in runs})
    count, first_seed = len(stored), len(stored) + 1
    design = np.zeros((len(runs), first_seed + len(seeds)))
    for row, (session_number, seed) in enumerate(runs):
        design[row, session_number] = design[row, first_seed + seeds.index(seed)] = 1
    solve = np.linalg.pinv(design)
    effect = solve[0] - solve[1:first_seed].mean(0)
    levels = solve[1:first_seed] - solve[1:first_seed].mean(0)
    return Layout(
        sessions=count,
        effect=effect,
        levels=levels,
        leftover=np.eye(len(runs)) - design @ solve,
        effect_runs=float(effect @ effect),
        levels_runs=float(np.square(levels).sum() / max(1, count - 1)),
        leftover_df=len(runs) - int(np.linalg.matrix_rank(design)),
    )
