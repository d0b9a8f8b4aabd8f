"""Least squares of the logarithms of TPOT and TTFT, robust, and held near what is known of the hardware."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from emulator_fit.anchors import ANCHORS
from emulator_fit.parameters import (
    ALIKE,
    DENSE,
    ENGINES,
    EVEN,
    EVEN_FAMILIES,
    EXPERTS,
    Numbers,
    Slot,
    per_engine,
    placed,
    start,
)
from emulator_fit.replayed import row_replayed
from emulator_fit.rows import Row
from emulator_fit.surrogate import estimate
from pytest_llmperf.calibration.host_fit import solve
from pytest_llmperf.emulator.cost.coefficients import Coefficients, family_of, from_numbers
from pytest_llmperf.emulator.cost.step_time import StepTime

FAMILY_TOLERANCE = 0.7  # of the logarithm of a family's coefficient, around the coefficient of the engine
TPOT_ERROR, TTFT_ERROR, ANCHOR_ERROR = 0.06, 0.15, 0.06
Residuals = Callable[[Numbers], npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Correction:
    """Replay over surrogate, of one run: a property of its schedule, hardly of the coefficients."""

    tpot: float = 1.0
    ttft: float = 1.0


def coefficients(numbers: Numbers, engine: str, family: str = "") -> Coefficients:
    """The coefficients of an engine, or of a family of mixtures that has numbers of its own."""
    return from_numbers(numbers[engine] | numbers.get(family, {}), "being fitted")


def of_row(numbers: Numbers, row: Row) -> Coefficients:
    """The coefficients of the engine and family of a run."""
    return coefficients(numbers, row.config.engine, family_of(row.config))


def correction(row: Row, numbers: Numbers, rounds: int) -> Correction:
    """Found by one replay. Measured values play no part in it."""
    coefficients_of_row = of_row(numbers, row)
    run = row_replayed(row, coefficients_of_row, rounds)
    guess = estimate(row, StepTime(row.config, coefficients_of_row))
    return Correction(run.tpot_ms / guess.tpot_ms, run.ttft_ms / guess.ttft_ms)


def fit_dense(rows: Sequence[Row], corrections: Mapping[str, Correction], with_anchors: bool) -> Numbers:
    """Hardware shared by both engines, overheads of each."""

    def residuals(numbers: Numbers) -> npt.NDArray[np.float64]:
        anchors = [math.log(anchor.predicted_ms(coefficients(numbers, anchor.engine)) / anchor.milliseconds)
                   for anchor in ANCHORS if with_anchors]
        return np.concatenate([_of_rows(rows, corrections, numbers), np.array(anchors) / ANCHOR_ERROR])

    return _solve(residuals, DENSE, start())


def fit_experts(rows: Sequence[Row], corrections: Mapping[str, Correction], numbers: Numbers) -> Numbers:
    """Fits the coefficients of routed experts, per engine and then per family near those of the engine; all other
    coefficients stay fixed. The coefficients of an engine are for families without rows.
    """
    alike, even = (_solve(partial(_of_rows, rows, corrections), per_engine(EXPERTS), _formed(numbers, form))
                   for form in (ALIKE, EVEN))
    families = {}
    for family in sorted({family_of(row.config) for row in rows}):
        members = [row for row in rows if family_of(row.config) == family]
        form, engines = (EVEN, even) if family in EVEN_FAMILIES else (ALIKE, alike)
        engine = engines[members[0].config.engine]
        near = [(family, replace(each, prior=engine[each.name], tolerance=FAMILY_TOLERANCE)) for each in EXPERTS]
        fitted = _solve(partial(_of_rows, members, corrections), near, {**engines, family: {}})
        families[family] = fitted[family] | form
    return {**even, **families}


def _formed(numbers: Numbers, form: dict[str, float]) -> Numbers:
    return {engine: numbers[engine] | form for engine in ENGINES}


def _solve(residuals: Residuals, free: list[Slot], base: Numbers) -> Numbers:
    values = solve(lambda tried: residuals(placed(tried, free, base)), [parameter for _, parameter in free])
    return placed(values, free, base)


def _of_rows(
    rows: Sequence[Row], corrections: Mapping[str, Correction], numbers: Numbers
) -> npt.NDArray[np.float64]:
    errors = []
    for row in rows:
        guess = estimate(row, StepTime(row.config, of_row(numbers, row)))
        correction = corrections.get(row.id, Correction())
        errors.append(math.log(guess.tpot_ms * correction.tpot / row.tpot_ms) / TPOT_ERROR)
        if not row.saturated:
            errors.append(math.log(guess.ttft_ms * correction.ttft / row.ttft_ms) / TTFT_ERROR)
    return np.array(errors)
