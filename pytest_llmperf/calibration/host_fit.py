"""Fit coefficients of the step times to measured runs.

Each run is replayed by the emulator's scheduler in virtual time. A few coefficients are fitted to mean TPOT, and a
little to mean TTFT, near the shipped values. The runs are divided into halves: the coefficients of each half predict
the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from pytest_llmperf.emulator.cluster.deployment import Deployment
from pytest_llmperf.emulator.cost.coefficients import (
    Coefficients,
    coefficients_for,
    family_of,
    from_numbers,
    numbers_of,
)
from pytest_llmperf.emulator.cost.step_time import StepTime
from pytest_llmperf.emulator.faults import Faults
from pytest_llmperf.emulator.flags.launch import Launch
from pytest_llmperf.emulator.flags.parser import StartError
from pytest_llmperf.emulator.http.generation_request import GenerationRequest
from pytest_llmperf.emulator.http.service import Service
from pytest_llmperf.load.virtual_client import Client
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.model.request import Request

_NEVER_NS = 10**18
_UNLIMITED = StreamLimits(first_byte_ns=_NEVER_NS, idle_ns=_NEVER_NS, total_ns=_NEVER_NS)
TimedRequest = tuple[int | None, GenerationRequest]  # send time after the start, ns; None: as soon as there is a place
_TPOT_ERROR, _TTFT_ERROR = 0.03, 0.3  # standard deviations of the logarithms: TTFT weighs little
_SLOPE = 0.05  # change of a logarithm by which a replay shows a slope
_ROUNDS = 12

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A coefficient, fitted as its logarithm.

    Args:
        name: in Coefficients.
        prior, tolerance: expected value, and the standard deviation of its logarithm.
        most: upper bound; a share of a peak stays below it.
    """

    name: str
    prior: float
    tolerance: float
    most: float = 1e9


#: Coefficient of a host → standard deviation of its logarithm around the shipped value, and upper bound.
OF_A_HOST = {
    "weight_bandwidth": (0.1, 1.0), "kv_bandwidth": (0.1, 1.0), "step_s": (0.5, 1e9), "layer_s": (0.5, 1e9),
    "sequence_s": (0.7, 1e9), "eager_layer_s": (0.7, 1e9), "ingress_s": (0.7, 1e9),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Means:
    """Mean TTFT and TPOT of the requests of a run, in milliseconds."""

    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class Point:
    """One measured run: the server, what it was sent, the limit of requests in flight, and what was measured."""

    launch: Launch
    posts: Sequence[TimedRequest]
    concurrency: int | None
    measured: Means

    def errors(self, coefficients: Coefficients) -> tuple[float, float]:
        """Logarithms of emulated over measured: of TPOT and of TTFT."""
        means = replayed(self.launch, self.posts, self.concurrency, coefficients)
        tpot, ttft = means.tpot_ms / self.measured.tpot_ms, means.ttft_ms / self.measured.ttft_ms
        return float(np.log(tpot)), float(np.log(ttft))


def replayed(
    launch: Launch, posts: Sequence[TimedRequest], concurrency: int | None, coefficients: Coefficients
) -> Means:
    """Mean TTFT and TPOT of requests that a server gets.

    Raises:
        StartError: the server refused a request.
    """
    deployment = Deployment(launch.config, StepTime(launch.config, coefficients))
    service = Service(launch, deployment, Faults(), 0, 0)
    ttft_ns, tpot_ns = [], []
    planned = tuple(PlannedRequest(index, "", b"", at_ns) for index, (at_ns, _) in enumerate(posts))
    plan = LoadPlan("", 0, planned, concurrency=concurrency, limits=_UNLIMITED)
    for request in Client(service, plan, asks=[ask for _, ask in posts]).run():
        if request.reply is not None:
            raise StartError(f"the server must take each request, and refused one: {request.reply.body.decode()}")
        (line,) = request.token_times
        ttft_ns.append(line.token_ns[0] - request.sent_ns)
        if line.sequence.generated > 1:
            tpot_ns.append((line.token_ns[-1] - line.token_ns[0]) / (line.sequence.generated - 1))
    return Means(fmean(ttft_ns) / 1e6, fmean(tpot_ns) / 1e6)


def solve(
    residuals: Callable[[Values], Values], parameters: Sequence[Parameter], slope: float | None = None, rounds: int = 60
) -> Values:
    """The values with the least residuals, robust (soft L1), each held near its prior.

    Args:
        residuals: of values in the order of `parameters`, each in standard deviations.
        parameters: what is fitted.
        slope: change of a logarithm by which slopes are found; None for the least one.
        rounds: how often slopes are found at most.
    """
    priors = np.log([parameter.prior for parameter in parameters])
    tolerances = np.array([parameter.tolerance for parameter in parameters])
    most = np.log([parameter.most for parameter in parameters])

    def all_residuals(logarithms: Values) -> Values:
        return np.concatenate([residuals(np.exp(logarithms)), (logarithms - priors) / tolerances])

    first = np.minimum(priors, most - 1e-3)
    steps = None if slope is None else slope / np.maximum(np.abs(first), slope)
    solution = least_squares(all_residuals, first, bounds=(priors - 4, most), loss="soft_l1", max_nfev=rounds,
                             diff_step=steps, ftol=1e-8 if slope is None else 1e-3)
    fitted: Values = np.exp(solution.x)
    return fitted


def fitted(points: Sequence[Point], shipped: Mapping[str, float]) -> dict[str, float]:
    """The coefficients of a host that fit its runs, rounded, by name."""
    parameters = [Parameter(name, shipped[name], *limits) for name, limits in OF_A_HOST.items()]

    def residuals(values: Values) -> Values:
        tried = _placed(shipped, dict(zip(OF_A_HOST, map(float, values), strict=True)))
        errors = [point.errors(tried) for point in points]
        return np.array([(tpot / _TPOT_ERROR, ttft / _TTFT_ERROR) for tpot, ttft in errors]).ravel()

    values = solve(residuals, parameters, _SLOPE, _ROUNDS)
    return {name: float(f"{value:.4g}") for name, value in zip(OF_A_HOST, values, strict=True)}


def held_out(points: Sequence[Point], shipped: Mapping[str, float]) -> tuple[float, float]:
    """Mean size of the TPOT error of runs outside the fit, with the shipped and with the fitted numbers."""
    halves = points[::2], points[1::2]
    before = [abs(point.errors(_placed(shipped, {}))[0]) for point in points]
    after = [abs(point.errors(_placed(shipped, numbers))[0]) for training, tested in (halves, halves[::-1])
             for numbers in [fitted(training, shipped)] for point in tested]
    return float(np.expm1(fmean(before))), float(np.expm1(fmean(after)))


def _placed(shipped: Mapping[str, float], numbers: Mapping[str, float]) -> Coefficients:
    return from_numbers({**shipped, **numbers}, "being fitted")


def point_of(launch: Launch, requests: Sequence[Request], concurrency: int | None, measured: Means) -> Point:
    """A measured run.

    Args:
        launch: of the server.
        requests: with prompts of tokens.
        concurrency: limit of requests in flight.
        measured: what the run measured.
    """
    posts = [(request.at_ns, GenerationRequest("completion", (tuple(request.prompt),), request.output_tokens,
                                               stream=True))
             for request in requests if not isinstance(request.prompt, str)]
    return Point(launch, posts, concurrency, measured)


@dataclass(frozen=True, slots=True)
class HostFit:
    """A fit to the runs of a host.

    Args:
        numbers: coefficient → fitted value.
        before, after: mean size of the TPOT error of runs outside the fit, with the shipped and the fitted numbers.
        at_peak: coefficients that end at the peak of the data sheet.
    """

    numbers: Mapping[str, float]
    before: float
    after: float
    at_peak: Sequence[str] = ()


def fit_host(points: Sequence[Point]) -> HostFit:
    """Fit the coefficients of one engine on one host.

    Raises:
        StartError: the server refused a request.
    """
    config = points[0].launch.config
    shipped = numbers_of(coefficients_for(config.engine, config.gpu, family_of(config)))
    before, after = held_out(points, shipped)
    numbers = fitted(points, shipped)
    return HostFit(numbers, before, after,
                   [name for name, (_, most) in OF_A_HOST.items() if numbers[name] > 0.995 * most])
