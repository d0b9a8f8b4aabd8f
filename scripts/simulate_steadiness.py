"""Steadiness of three runs without a baseline: false ERRORs on noisy hosts, and slow beginnings that are found.

    python scripts/simulate_verdicts.py steadiness --suites 2000
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from simulate_claims import heading, row

from pytest_llmperf.calibration.page import share
from pytest_llmperf.judging.steadiness import ALPHA, METRIC
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.stats.level import level_change
from pytest_llmperf.stats.priors import Scale, margins_for, prior_for

Array = npt.NDArray[np.float64]
REQUESTS, TOKEN_MS = 100, 5.0
#: Sd between runs, and of one request's TPOT.
NOISE = ((0.003, 0.03), (0.005, 0.03), (0.005, 0.10), (0.01, 0.03), (0.02, 0.03), (0.02, 0.10), (0.035, 0.03),
         (0.035, 0.10))  # fmt: skip


@dataclass(frozen=True)
class Planted:
    """What makes the first runs slower.

    Args:
        name: for people.
        factors: of successive runs; 1 for the runs that follow.
        beginning: of the first fifth of the first run.
    """

    name: str
    factors: tuple[float, ...] = ()
    beginning: float = 1.0


PLANTED = (
    Planted("nothing"), Planted("first run +10 %", (1.1,)), Planted("first run +20 %", (1.2,)),
    Planted("5.67, 5.14, 4.70 ms", (5.67 / 4.7, 5.14 / 4.7)), Planted("drift of 12 %", (1.12, 1.06)),
    Planted("first fifth of the first run × 2", beginning=2.0),
)  # fmt: skip


def called(runs: Array) -> bool:
    """Whether the product calls these runs (runs × requests) not steady."""
    metric = find(METRIC)
    tolerated = margins_for(metric, "h200").on(Scale.LOG).tolerated
    return level_change(runs.tolist(), prior_for(metric, "h200"), tolerated, ALPHA) is not None


def drawn(planted: Planted, run_sd: float, request_sd: float, runs: int, rng: np.random.Generator) -> Array:
    """TPOTs in ms: runs × requests."""
    levels = np.array([*planted.factors, *[1.0] * runs][:runs]) * np.exp(rng.normal(0, run_sd, runs))
    values: Array = TOKEN_MS * levels[:, None] * np.exp(rng.normal(0, request_sd, (runs, REQUESTS)))
    values[0, :REQUESTS // 5] *= planted.beginning
    return values


def steadiness_table(trials: int, rng: np.random.Generator, runs: tuple[int, ...] = (3, 5, 8)) -> Iterator[str]:
    """Measurements that are called not steady."""
    for count in runs:
        yield from heading(f"Not steady, {count} runs of {REQUESTS} requests, {trials} measurements", "run sd",
                           "request sd", *(planted.name for planted in PLANTED))
        for run_sd, request_sd in NOISE:
            yield row(f"{100 * run_sd:g} %", f"{100 * request_sd:g} %", *(
                share(sum(called(drawn(planted, run_sd, request_sd, count, rng)) for _ in range(trials)), trials)
                for planted in PLANTED))


TABLES = {"steadiness": steadiness_table}
