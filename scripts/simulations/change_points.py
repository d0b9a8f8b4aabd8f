"""Change points of a series of sessions: false alarms, and how soon a change is found."""

from __future__ import annotations

import json
import os
import subprocess
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
#: An environment with apache-otava, whose pins exclude ours: python -m venv FOLDER; FOLDER/bin/pip install apache-otava
OTAVA = os.environ.get("LLMPERF_OTAVA")
OTAVA_LOOP = """
import json, sys
from otava.analysis import compute_change_points
for line in sys.stdin:
    values, stored = json.loads(line)
    found = [compute_change_points(values[:count])[0] for count in range(stored, len(values) + 1)]
    print(json.dumps([[(int(point.index), float(point.stats.forward_rel_change())) for point in points]
                      for points in found]))
"""
#: Two change points of Otava that are at most so many sessions apart are one: the place moves as sessions come.
SAME_PLACE = 2


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


def otava(histories: int, rng: np.random.Generator) -> Iterator[str]:
    """Our rule and Apache Otava with its defaults, each after every session, on the same series."""
    yield from heading("Beside Apache Otava", "series", "stored before", "false alarms in 1,000 weeks: llmperf",
                       "Otava", "found within 2 sessions: llmperf", "Otava", "within 8: llmperf", "Otava")
    for name, sd in (("normal", 0.005), ("normal", 0.008), ("normal", 0.012), ("t with 3 df", 0.008)):
        for stored in (20, 60):
            flat, shifted = ((sd * NOISES[name](rng, histories * count)).reshape(histories, count)
                             for count in (stored + WEEKS * SESSIONS_A_WEEK, stored + 8))
            shifted[:, stored:] += log1p(CHANGE)
            alarms = [[sum(point.found >= stored for point in changes(levels.tolist()).points) for levels in flat],
                      [len(_otava_alarms(looks)) for looks in _otava_looks(flat, stored)]]
            delays = [[min((point.found - stored + 1 for point in changes(levels.tolist()).points
                            if point.found >= stored and point.shift > 0), default=99) for levels in shifted],
                      [next((number for number, points in enumerate(looks) if any(
                          abs(at - stored) <= SAME_PLACE and change > 0 for at, change in points)), 99)
                       for looks in _otava_looks(shifted, stored)]]
            weeks = histories * WEEKS / 1000
            yield row(f"{name}, sd {percent(sd)}", stored, *(f"{sum(each) / weeks:.2g}" for each in alarms),
                      *(share_of(delay <= limit for delay in each) for limit in (2, 8) for each in delays))


def _otava_looks(series: npt.NDArray[np.float64], stored: int) -> list[list[list[tuple[int, float]]]]:
    """Series → session from `stored` on → change points of Otava after so many sessions: place and relative change."""
    lines = "".join(f"{json.dumps((np.exp(levels).tolist(), stored))}\n" for levels in series)
    done = subprocess.run([f"{OTAVA}/bin/python", "-c", OTAVA_LOOP], input=lines, capture_output=True, text=True,
                          check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _otava_alarms(looks: list[list[tuple[int, float]]]) -> list[int]:
    """Places that Otava names after the first look, and not close to a place that it has named before."""
    known, named = [at for at, _ in looks[0]], list[int]()
    for points in looks[1:]:
        named += [at for at, _ in points if all(abs(at - other) > SAME_PLACE for other in [*known, *named])]
    return named


TABLES: dict[str, Table] = {"change_points": tables} | ({"otava": otava} if OTAVA else {})
