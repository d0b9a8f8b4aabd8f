"""The fitted coefficients, each with its initial value, its bounds and its engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

ENGINES = ("vllm", "sglang")
Owner = Literal["hardware", "engine"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A coefficient, fitted as its logarithm.

    Args:
        name: in Coefficients.
        owner: the hardware has one value for all engines; an engine has its own.
        prior, tolerance: expected value, and the standard deviation of its logarithm.
        most: upper bound; a share of a peak stays below it.
    """

    name: str
    owner: Owner
    prior: float
    tolerance: float
    most: float = 1e9


DENSE = (
    Parameter("weight_bandwidth", "hardware", 0.86, 0.04, 0.92),
    Parameter("kv_bandwidth", "hardware", 0.80, 0.2, 0.95),
    Parameter("kv_bandwidth_fp8", "hardware", 0.50, 0.4, 0.95),
    Parameter("matrix", "hardware", 0.72, 0.15, 0.9),
    Parameter("matrix_fp8", "hardware", 0.58, 0.15, 0.85),
    Parameter("attention", "hardware", 0.50, 0.3, 0.8),
    Parameter("sharpness", "hardware", 2.0, 0.4, 12.0),
    Parameter("allreduce_bandwidth", "hardware", 0.70, 0.3, 0.95),
    Parameter("step_s", "engine", 5e-4, 0.7),
    Parameter("layer_s", "engine", 2e-5, 0.5),
    Parameter("fp8_layer_s", "engine", 1.5e-5, 0.7),
    Parameter("sequence_s", "engine", 1.2e-5, 0.7),
    Parameter("token_s", "engine", 20.0, 0.5),
    Parameter("sync_s", "engine", 1e-3, 0.7),
    Parameter("sync_sequence_s", "engine", 1e-5, 1.0),
    Parameter("stream_s", "engine", 4e-5, 0.3),
    Parameter("ungraphed_layer_s", "engine", 1.5e-4, 0.4),
    Parameter("allreduce_s", "engine", 8e-6, 0.5),
    Parameter("ingress_s", "engine", 6e-3, 0.25),
    Parameter("ingress_token_s", "engine", 2.5e-6, 0.25),
)
EXPERTS = (
    Parameter("expert_bandwidth", "engine", 0.80, 0.2, 1.0),
    Parameter("expert_matrix", "engine", 0.70, 0.2, 1.0),
    Parameter("expert_token_s", "engine", 8.0, 0.5),
    Parameter("expert_layer_s", "engine", 2.5e-5, 0.7),
    Parameter("expert_ungraphed_layer_s", "engine", 3e-4, 0.7),
)
# Not in the data. Llama-3.1-8B served one stream with --enforce-eager at 18 to 21 ms a token on one H200 host: 0.6 ms
# for each of 32 layers (docs/measured/h200, host g; host i, at 14 to 19 ms, is held out).
FIXED = {"eager_layer_s": 6e-4}

Numbers = dict[str, dict[str, float]]


def start() -> Numbers:
    """The priors, per engine."""
    numbers: Numbers = {engine: dict(FIXED) for engine in ENGINES}
    for owner, parameter in slots(DENSE) + slots(EXPERTS):
        for name in ENGINES if owner == "hardware" else (owner,):
            numbers[name][parameter.name] = parameter.prior
    return numbers


def slots(parameters: tuple[Parameter, ...]) -> list[tuple[str, Parameter]]:
    """One per free number: ("hardware" or an engine, parameter)."""
    slots_: list[tuple[str, Parameter]] = []
    for parameter in parameters:
        owners = ENGINES if parameter.owner == "engine" else (parameter.owner,)
        slots_ += [(owner, parameter) for owner in owners]
    return slots_


def placed(values: npt.NDArray[np.float64], free: list[tuple[str, Parameter]], base: Numbers) -> Numbers:
    """`base` with the free numbers at exp(values)."""
    numbers = {name: dict(values) for name, values in base.items()}
    for (owner, parameter), value in zip(free, np.exp(values), strict=True):
        for name in ENGINES if owner == "hardware" else (owner,):
            numbers[name][parameter.name] = float(value)
    return numbers
