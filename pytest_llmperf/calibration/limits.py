"""How often an SLO passes at its exact limit, where it should do so in at most 5 % of cases.

Latencies of successive requests are autocorrelated (AR(1) of 0.6), and server starts differ. The limit is the true
percentile over all starts, so each PASS and each FAIL is false, and both should have the nominal rate of 5 % at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp
from statistics import NormalDist
from typing import TYPE_CHECKING

from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.metrics.run import RunMetrics, measure
from pytest_llmperf.model.record import Outcome, RequestRecord
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.slo.parse import parse_slo

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

STARTS = ("a", "b", "c", "d", "e")
AUTOCORRELATION = 0.6
SPREAD = 0.3  # sd of the logarithm of one start's TTFTs
MEDIAN_MS = 100.0


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    Args:
        percentile: of the SLO, e.g. 95.
        requests: in each run.
        shift: sd between server starts over the sd between requests.
    """

    percentile: int
    requests: int
    shift: float


SETTINGS = tuple(Setting(percentile, requests, shift)
                 for percentile, requests in ((95, 100), (95, 330), (99, 330))
                 for shift in (0.0, 0.3, 1.0))


def verdicts_at_limit(setting: Setting, trials: int, seed: int) -> Iterator[Verdict]:
    """Verdicts of independent trials, each five runs on five server starts, at the true percentile."""
    import numpy as np

    rng = np.random.default_rng((seed, setting.percentile, setting.requests, round(100 * setting.shift)))
    slo = parse_slo(f"ttft_p{setting.percentile} <= {limit_ms(setting):.9f}ms")
    for _ in range(trials):
        yield judge_slo(slo, trial(setting, rng), STARTS).verdict


def limit_ms(setting: Setting) -> float:
    """The true percentile of a setting, over all server starts there could be."""
    both = SPREAD * (1 + setting.shift**2) ** 0.5
    return MEDIAN_MS * exp(both * NormalDist().inv_cdf(setting.percentile / 100))


def trial(setting: Setting, rng: np.random.Generator) -> list[RunMetrics]:
    """Five runs, each on a server start of its own."""
    import numpy as np

    normal = _autocorrelated(rng, setting.requests) + setting.shift * rng.standard_normal((len(STARTS), 1))
    return [_run(values) for values in MEDIAN_MS * np.exp(SPREAD * normal)]


def _autocorrelated(rng: np.random.Generator, requests: int) -> npt.NDArray[np.float64]:
    from scipy.signal import lfilter

    shocks = rng.standard_normal((len(STARTS), requests))
    shocks[:, 1:] *= (1 - AUTOCORRELATION**2) ** 0.5
    filtered: npt.NDArray[np.float64] = lfilter([1.0], [1.0, -AUTOCORRELATION], shocks, axis=-1)
    return filtered


def _run(ttfts_ms: npt.NDArray[np.float64]) -> RunMetrics:
    records = []
    for index, ttft_ms in enumerate(ttfts_ms.tolist()):
        intended_ns = index * 100_000_000
        first_ns = intended_ns + round(ttft_ms * 1e6)
        records.append(RequestRecord(index, intended_ns, intended_ns, first_ns, Outcome.OK, None, (first_ns,), (1,),
                                     8, 1, 8, 1))
    return measure(records)
