"""Change points of a series of sessions: false alarms, and how soon a change is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log1p

import numpy as np
import numpy.typing as npt

from pytest_llmperf.stats.change_points import changes
from simulations.tables import Table, heading, percent, row, share_of

SESSIONS_A_WEEK, WEEKS = 5, 10
CHANGE = 0.03
Noise = Callable[[np.random.Generator, int], npt.NDArray[np.float64]]
NOISES: dict[str, Noise] = {
    "normal": lambda rng, count: rng.normal(0, 1, count),
    "t with 5 df": lambda rng, count: rng.standard_t(5, count) / (5 / 3) ** 0.5,
    "t with 3 df": lambda rng, count: rng.standard_t(3, count) / 3**0.5,
}


def false_alarms(histories: int, rng: np.random.Generator) -> Iterator[str]:
    """Series without a change."""
    yield from heading(f"Series of {SESSIONS_A_WEEK} sessions a week without a change, {WEEKS} weeks each",
                       "noise", "stored before", "false alarms in 1,000 weeks", "series with one")
    for name, noise in NOISES.items():
        for stored in (10, 20, 60):
            found = [sum(point.found >= stored for point in changes(
                (0.008 * noise(rng, stored + WEEKS * SESSIONS_A_WEEK)).tolist()).points) for _ in range(histories)]
            yield row(name, stored, f"{1000 * sum(found) / (histories * WEEKS):.2g} ({sum(found)} seen)",
                      share_of(count > 0 for count in found))


def power(histories: int, rng: np.random.Generator) -> Iterator[str]:
    """Series whose level gets worse for good."""
    yield from heading(f"A change of {percent(CHANGE)} for the worse", "sd of a session", "stored before",
                       "found within 2 sessions", "within 4", "within 8", "within 16", "stated: found after")
    for sd in (0.005, 0.008, 0.012, 0.02):
        for stored in (20, 60, 120):
            delays, needed = list[int](), set[object]()
            for _ in range(histories):
                levels = sd * rng.normal(0, 1, stored + 16)
                levels[stored:] += log1p(CHANGE)
                found = [point.found - stored + 1 for point in changes(levels.tolist()).points
                         if point.found >= stored and point.shift > 0]
                delays.append(min(found, default=99))
                needed.add(changes((sd * rng.normal(0, 1, stored)).tolist()).sessions_needed(log1p(CHANGE)))
            stated = sorted(str(each) for each in needed)
            yield row(percent(sd), stored, *(share_of(delay <= limit for delay in delays) for limit in (2, 4, 8, 16)),
                      ", ".join(stated))


def tables(histories: int, rng: np.random.Generator) -> Iterator[str]:
    yield from false_alarms(histories, rng)
    yield from power(max(100, histories // 10), rng)


TABLES: dict[str, Table] = {"change_points": tables}
