"""Least squares of the logarithms of TPOT and TTFT, robust, and held near what is known of the hardware."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator_fit.anchors import ANCHORS
from emulator_fit.parameters import DENSE, EXPERTS, Numbers, Slot, per_engine, placed, start
from emulator_fit.replayed import row_replayed
from emulator_fit.rows import Row
from emulator_fit.surrogate import estimate
from pytest_llmperf.emulator.cost.coefficients import Coefficients, from_numbers
from pytest_llmperf.emulator.cost.step_time import StepTime
from pytest_llmperf.emulator.fit import solve

TPOT_ERROR, TTFT_ERROR, ANCHOR_ERROR = 0.06, 0.15, 0.06
Residuals = Callable[[Numbers], npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Correction:
    """Replay over surrogate, of one run: a property of its schedule, hardly of the coefficients."""

    tpot: float = 1.0
    ttft: float = 1.0


def coefficients(numbers: Numbers, engine: str) -> Coefficients:
    """Of an engine."""
    return from_numbers(numbers[engine], "being fitted")


def correction(row: Row, numbers: Numbers, rounds: int) -> Correction:
    """Found by one replay. Measured values play no part in it."""
    coefficients_of_row = coefficients(numbers, row.config.engine)
    run = row_replayed(row, coefficients_of_row, rounds)
    guess = estimate(row, StepTime(row.config, coefficients_of_row))
    return Correction(run.tpot_ms / guess.tpot_ms, run.ttft_ms / guess.ttft_ms)


def fit_dense(rows: Sequence[Row], corrections: Mapping[str, Correction], with_anchors: bool) -> Numbers:
    """Hardware shared by both engines, overheads of each."""

    def residuals(numbers: Numbers) -> npt.NDArray[np.float64]:
        errors = _of_rows(rows, corrections, numbers)
        if with_anchors:
            for anchor in ANCHORS:
                predicted = anchor.predicted_ms(coefficients(numbers, anchor.engine))
                errors.append(math.log(predicted / anchor.milliseconds) / ANCHOR_ERROR)
        return np.array(errors)

    return _solve(residuals, DENSE, start())


def fit_experts(rows: Sequence[Row], corrections: Mapping[str, Correction], numbers: Numbers) -> Numbers:
    """Fits the coefficients of routed experts; all other coefficients stay fixed."""
    return _solve(lambda tried: np.array(_of_rows(rows, corrections, tried)), per_engine(EXPERTS), numbers)


def _solve(residuals: Residuals, free: list[Slot], base: Numbers) -> Numbers:
    values = solve(lambda tried: residuals(placed(tried, free, base)), [parameter for _, parameter in free])
    return placed(values, free, base)


def _of_rows(rows: Sequence[Row], corrections: Mapping[str, Correction], numbers: Numbers) -> list[float]:
    errors = []
    for row in rows:
        guess = estimate(row, StepTime(row.config, coefficients(numbers, row.config.engine)))
        correction = corrections.get(row.id, Correction())
        errors.append(math.log(guess.tpot_ms * correction.tpot / row.tpot_ms) / TPOT_ERROR)
        if not row.saturated:
            errors.append(math.log(guess.ttft_ms * correction.ttft / row.ttft_ms) / TTFT_ERROR)
    return errors
