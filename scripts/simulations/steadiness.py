"""Steadiness of runs: false ERRORs on noisy and on H200 hosts, and slow beginnings that are found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import log

import numpy as np
import numpy.typing as npt

from pytest_llmperf.judging.steadiness import ALPHA, FEWEST_SESSIONS, METRIC, drift_p
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.stats.level import level_change
from pytest_llmperf.stats.priors import Scale, margins_for, prior_for
from pytest_llmperf.stats.shift import shift
from simulations.baseline_tables import H200_TESTS, SESSIONS, h200_suite
from simulations.baselines import Suite, compared, draw
from simulations.tables import Table, heading, percent, row, share_of

Array = npt.NDArray[np.float64]
REQUESTS, TOKEN_MS, RUNS = 100, 5.0, 3
#: Mean TPOT of a fresh TP=2 server in its first runs, over that of a warm one.
WARMING_UP = (5.67 / 4.70, 5.14 / 4.70, 1.0)
#: Sd between runs, and of one request's TPOT.
NOISE = ((0.003, 0.03), (0.005, 0.03), (0.005, 0.10), (0.01, 0.03), (0.02, 0.03), (0.02, 0.10), (0.035, 0.03),
         (0.035, 0.10))  # fmt: skip
#: Sd between runs and between sessions of paired runs.
PAIRED_NOISE = ((0.003, 0.003), (0.006, 0.004), (0.01, 0.005), (0.02, 0.01), (0.035, 0.02))


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
    Planted("5.67, 5.14, 4.70 ms", WARMING_UP), Planted("drift of 12 %", (1.12, 1.06)),
    Planted("first fifth of the first run × 2", beginning=2.0),
)  # fmt: skip


def tolerated(kind: str) -> float:
    return margins_for(find(METRIC), kind).on(Scale.LOG).tolerated


def is_unsteady(runs: list[list[float]], kind: str = "h200") -> bool:
    """Whether the product calls these TPOTs (runs × requests) not steady."""
    return level_change(runs, prior_for(find(METRIC), kind), tolerated(kind), ALPHA) is not None


def drawn(planted: Planted, run_sd: float, request_sd: float, runs: int, rng: np.random.Generator) -> Array:
    """TPOTs in ms: runs × requests."""
    levels = np.array([*planted.factors, *[1.0] * runs][:runs]) * np.exp(rng.normal(0, run_sd, runs))
    values: Array = TOKEN_MS * levels[:, None] * np.exp(rng.normal(0, request_sd, (runs, REQUESTS)))
    values[0, :REQUESTS // 5] *= planted.beginning
    return values


def steadiness_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """Measurements that are called not steady, without stored sessions."""
    yield from heading(f"Not steady, runs of {REQUESTS} requests, {trials} measurements", "runs", "run sd",
                       "request sd", *(planted.name for planted in PLANTED))
    for runs, (run_sd, request_sd) in product((3, 5, 8), NOISE):
        yield row(runs, percent(run_sd), percent(request_sd), *(
            share_of(is_unsteady(drawn(planted, run_sd, request_sd, runs, rng).tolist()) for _ in range(trials))
            for planted in PLANTED))


def paired_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """Three runs against three stored sessions of the same seeds."""
    yield from heading(f"Not steady against three stored sessions, {trials} measurements", "run sd", "session sd",
                       "nothing", "5.67, 5.14, 4.70 ms")
    prior = prior_for(find(METRIC), "h200")
    for run_sd, session_sd in PAIRED_NOISE:
        alarms: list[tuple[bool, ...]] = []
        for _ in range(trials):
            levels = rng.normal(0, session_sd, (4, 1)) + rng.normal(0, 0.02, RUNS) + rng.normal(0, run_sd, (4, RUNS))
            same, *stored = [list(enumerate(session)) for session in levels.tolist()]
            warming_up = [(seed, value + log(factor)) for (seed, value), factor in zip(same, WARMING_UP, strict=True)]
            alarms.append(tuple(drift_p(shift(today, stored, prior), stored, tolerated("h200")) is not None
                                for today in (same, warming_up)))
        yield row(percent(run_sd), percent(session_sd), *map(share_of, zip(*alarms, strict=True)))


#: Sd of mean TPOT between runs of the tests of `H200_TESTS` (docs/evidence/compared_metrics.md), and of its level
#: between seeds and of one request within a run. The answers of "TP 4" are too short for the check.
H200_RUN_SD = {"serving": 0.0078, "chunked prefill": 0.0105, "prefix cache": 0.0078, "offload": 0.0171,
               "roofline": 0.0003, "speculation": 0.0262, "TP 2": 0.0421}  # fmt: skip
SEED_SD, REQUEST_SD = 0.02, 0.10


def h200_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """Three runs of each test on a healthy host, with the noise of the stored H200 sessions."""
    yield from heading("Not steady on a healthy H200, suite runs of eight tests", "stored sessions",
                       "tests not steady", "suite runs with such a test", "most often")
    for sessions in SESSIONS:
        suite = h200_suite(sessions, learns_margins=True)
        errors = np.array([[any(verdicts) for verdicts in errors_of(suite, rng)] for _ in range(trials)])
        often = errors.mean(0)
        yield row(sessions, share_of(errors.ravel()), share_of(errors.any(1)),
                  f"{list(H200_TESTS)[int(often.argmax())]}: {percent(float(often.max()))}")


def errors_of(suite: Suite, rng: np.random.Generator) -> Iterator[list[bool]]:
    """For each test whether its TPOTs are not steady, and whether each primary metric drifts from its stored runs."""
    for name, test in zip(H200_TESTS, compared(suite, *draw(suite, rng, RUNS)), strict=True):
        drifts = [drift_p(shift(metric.runs, metric.stored, metric.prior), metric.stored, metric.margins.tolerated)
                  is not None for metric in test]
        run_sd = H200_RUN_SD.get(name)
        yield [run_sd is not None and tpot_is_unsteady(run_sd, suite.sessions, rng), *drifts]


def tpot_is_unsteady(run_sd: float, sessions: int, rng: np.random.Generator) -> bool:
    """Whether TPOTs of three steady runs are called not steady, given so many stored sessions."""
    seeds = rng.normal(0, SEED_SD, RUNS)
    levels = seeds + rng.normal(0, run_sd, (1 + sessions, RUNS))
    runs = np.exp(levels[0, :, None] + rng.normal(0, REQUEST_SD, (RUNS, REQUESTS)))
    stored, prior = [list(enumerate(session)) for session in levels[1:].tolist()], prior_for(find(METRIC), "h200")
    known = sessions >= FEWEST_SESSIONS
    if known:
        prior = replace(prior, run_sd=max(prior.run_sd, shift(stored[0], stored[1:], prior).run_sd))
    return level_change(runs.tolist(), prior, tolerated("h200"), ALPHA, known=known) is not None


TABLES: dict[str, Table] = {"steadiness": steadiness_table, "paired_steadiness": paired_table,
                            "h200_steadiness": h200_table}
