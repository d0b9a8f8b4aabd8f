"""Least squares of the logarithms of TPOT and TTFT, robust, and held near what is known of the hardware."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from emulator_fit.anchors import ANCHORS
from emulator_fit.parameters import DENSE, EXPERTS, Numbers, Parameter, placed, slots, start
from emulator_fit.replayed import Means, replayed
from emulator_fit.rows import Row
from emulator_fit.surrogate import estimate
from pytest_llmperf.emulator.cost.coefficients import Coefficients, from_numbers
from pytest_llmperf.emulator.cost.step_time import StepTime

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
    run: Means = replayed(row, coefficients_of_row, rounds)
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
    return _solve(lambda tried: np.array(_of_rows(rows, corrections, tried)), EXPERTS, numbers)


def _solve(residuals: Residuals, parameters: tuple[Parameter, ...], base: Numbers) -> Numbers:
    free = slots(parameters)
    priors = np.log([parameter.prior for _, parameter in free])
    tolerances = np.array([parameter.tolerance for _, parameter in free])
    most = np.log([parameter.most for _, parameter in free])

    def all_residuals(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.concatenate([residuals(placed(values, free, base)), (values - priors) / tolerances])

    first = np.minimum(priors, most - 1e-3)
    solution = least_squares(all_residuals, first, bounds=(priors - 4, most), loss="soft_l1", max_nfev=60)
    return placed(solution.x, free, base)


def _of_rows(rows: Sequence[Row], corrections: Mapping[str, Correction], numbers: Numbers) -> list[float]:
    errors = []
    for row in rows:
        guess = estimate(row, StepTime(row.config, coefficients(numbers, row.config.engine)))
        correction = corrections.get(row.id, Correction())
        errors.append(math.log(guess.tpot_ms * correction.tpot / row.tpot_ms) / TPOT_ERROR)
        if not row.saturated:
            errors.append(math.log(guess.ttft_ms * correction.ttft / row.ttft_ms) / TTFT_ERROR)
    return errors
