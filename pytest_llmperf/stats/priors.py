"""Prior sds for each kind of metric without calibration, and the default margins that fit these sds.

GPUs: vLLM on H200s, on different hosts and days (33 pairs): median TTFT moves by 2.7 %, TPOT by 0.31 %. The same seed
on two starts of one host moved TPOT by 0.3 %. Three hosts per test of this project differed more if work waits for the
CPU (docs/measured/h200_between_hosts.md): mean TPOT on one GPU by 0.7 to 2 % (sd), median TTFT by 2 to 36 %. The priors
have few degrees of freedom, so a few stored sessions outweigh the priors.
Mean TPOT contains the decode step, so its sessions are taken to differ by no less than those of the step. In the tests
that judge it with these margins they differ by 0.7 to 1.1 % (sd).

The median gap between tokens is the decode step. Four suite tests compare the decode step with these margins: their 19
stored H200 sessions on 12 hosts have an sd of 0.3 to 0.7 % between sessions (rms 0.57 %) and of 0.2 to 0.3 % between
runs. On the noisier host with resident servers the sd between runs is 0.4 %. The prior has the 0.4 %, because `spread`
raises the sd of sessions if runs differ by more than the prior says. docs/evidence/compared_metrics.md has the false
alarms under the negligible margin of 1.5 %.

CPUs: 27 starts of vLLM 0.32.0 on two cores of a host that others use (two workloads, three seeds each): runs differed
by 8 to 12 %, starts by 16 to 17 % in TPOT, 10 to 12 % in median TTFT, 6 to 13 % in p99s. An unshared machine
differs less, so the priors have the run sd of a quiet machine. The ratio of session sd to run sd is that of the shared
host (1.5 for TPOT), and `spread` raises the session sd with the run sd by this ratio. One stored session of such a host
gave false alarms in 4.3 % of tests with a ratio of 1, and in 0.8 % with 1.5 (2,000 simulated). On a host with a run sd
of 2 % both ratios find +30 % (99 and 100 %).

An endpoint on a different machine has unknown hardware and takes the priors and margins of GPUs. Its priors have half
the degrees of freedom, so stored sessions outweigh the priors sooner. The error rates are in
docs/evidence/baseline_comparisons.md.

Margins were chosen by simulation, for a median TTFT that moves by 2.7 % between sessions. With margins of 2 and 5 % the
comparison is INCONCLUSIVE in 50 % (ten stored sessions) to 75 % (one) of cases. With margins of 3 and 15 % the
comparison is INCONCLUSIVE in 0.2 to 7 % of cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import isfinite, log, log1p
from statistics import fmean, variance

from pytest_llmperf.metrics import Direction, Metric, Unit
from pytest_llmperf.model.engine import UNKNOWN_HARDWARE
from pytest_llmperf.stats.interval import factor


class Scale(Enum):
    """The scale on which errors of a metric are additive: logarithm, or percentage points."""

    LOG = "log"
    POINTS = "points"

    def read(self, value: float | None, *, worse_when_larger: bool = True) -> float:
        """A run's value as the comparison takes it: a larger one is worse.

        Args:
            value: in the metric's unit.
            worse_when_larger: False for throughput, hit rate, acceptance.

        Raises:
            ValueError: the value is missing, not finite, or not above 0 although its logarithm is needed.
        """
        if value is None or not isfinite(value):
            raise ValueError(f"a run's value is {'missing' if value is None else value}")
        if self is Scale.LOG and value <= 0:
            raise ValueError(f"a run's value is {value:g}, and only values above 0 can be compared as a ratio")
        number = log(value) if self is Scale.LOG else value
        return number if worse_when_larger else -number

    def in_unit(self, reading: float, *, worse_when_larger: bool = True) -> float:
        """The value in the metric's unit whose reading this is: the inverse of `read`."""
        number = reading if worse_when_larger else -reading
        return factor(number) if self is Scale.LOG else number

    def width(self, share: float) -> float:
        """A share of change, 0.02 for 2 % or for 2 percentage points, as a distance on this scale."""
        return log1p(share) if self is Scale.LOG else share

    def change(self, distance: float, *, worse_when_larger: bool = True) -> float:
        """A distance on this scale as the change of the metric: 0.02 for +2 %, or for +2 percentage points."""
        signed = distance if worse_when_larger else -distance
        return factor(signed) - 1 if self is Scale.LOG else signed


@dataclass(frozen=True, slots=True)
class Prior:
    """Prior sds of a metric, with their weight.

    Args:
        run_sd: sd between runs of the same seed within a session, on the metric's scale; 0.005 is 0.5 %.
        session_sd: sd between sessions.
        df: degrees of freedom with which each prior sd enters the estimate.
        source: origin of the figures, as text for the reader.
        learnt: whether `session_sd` is what the stored sessions of the suite show (`suite_spread`).

    Raises:
        ValueError: a figure is not above 0.
    """

    run_sd: float
    session_sd: float
    df: float
    source: str
    learnt: bool = False

    def __post_init__(self) -> None:
        if min(self.run_sd, self.session_sd, self.df) <= 0:
            raise ValueError(f"a prior of {self.run_sd}, {self.session_sd} and {self.df} degrees of freedom")


#: Negligible change as a part of the tolerated change, where a test names the tolerated change alone.
NEGLIGIBLE_PART = 0.4


@dataclass(frozen=True, slots=True)
class Margins:
    """How much worse a metric may be, as shares: 0.02 is 2 %, or 2 percentage points of a share.

    Args:
        negligible: only what is proven to be worse by more fails.
        tolerated: only what is proven to be worse by less passes.

    Raises:
        ValueError: not 0 ≤ negligible < tolerated.
    """

    negligible: float
    tolerated: float

    def __post_init__(self) -> None:
        if not 0 <= self.negligible < self.tolerated:
            raise ValueError(f"margins of {self.negligible:g} (negligible) and {self.tolerated:g} (tolerated): "
                             "the first must be at least 0 and below the second")

    def on(self, scale: Scale) -> Margins:
        """As distances on a scale."""
        return Margins(scale.width(self.negligible), scale.width(self.tolerated))


class Kind(Enum):
    """Metrics that are noisy in the same way."""

    TTFT = "latency with a first token"
    STEP = "decode step"
    TPOT = "mean per token, or throughput"
    TAIL = "tail"
    SHARE = "share"


_H200 = "default, from H200 sessions on several hosts and days"
_STEPS = "default, from 19 H200 sessions on 12 hosts"
_GUESS = "default, a guess"
_DF = 6
#: Of a server on unknown hardware stored sessions say more than the prior does.
_UNKNOWN_DF = 3

_PRIORS = {
    Kind.TTFT: Prior(0.02, 0.027, _DF, _H200),
    Kind.STEP: Prior(0.004, 0.006, _DF, _STEPS),
    Kind.TPOT: Prior(0.006, 0.006, _DF, _STEPS),
    Kind.TAIL: Prior(0.05, 0.05, _DF, _GUESS),
    Kind.SHARE: Prior(0.005, 0.005, _DF, _GUESS),
}
_CPU_PRIORS = {
    Kind.TTFT: Prior(0.04, 0.054, _DF, f"{_GUESS} for CPUs"),
    Kind.STEP: Prior(0.02, 0.03, _DF, f"{_GUESS} for CPUs"),
    Kind.TPOT: Prior(0.02, 0.03, _DF, f"{_GUESS} for CPUs"),
    Kind.TAIL: Prior(0.10, 0.10, _DF, f"{_GUESS} for CPUs"),
    Kind.SHARE: Prior(0.005, 0.005, _DF, f"{_GUESS} for CPUs"),
}
_MARGINS = {
    Kind.TTFT: Margins(0.03, 0.15),
    Kind.STEP: Margins(0.015, 0.05),
    Kind.TPOT: Margins(0.02, 0.05),
    Kind.TAIL: Margins(0.05, 0.15),
    Kind.SHARE: Margins(0.01, 0.03),
}
_CPU_MARGINS = {
    Kind.TTFT: Margins(0.05, 0.25),
    Kind.STEP: Margins(0.05, 0.15),
    Kind.TPOT: Margins(0.05, 0.15),
    Kind.TAIL: Margins(0.10, 0.40),
    Kind.SHARE: Margins(0.01, 0.03),
}
_REFERENCE_STEP_MARGINS = Margins(0.003, 0.01)
_TAILS = ("p90", "p95", "p99", "max")
_GAPS = ("itl", "itl_per_token")
_FIRST_TOKEN = ("ttft", "e2el", "send_delay")
_LIKE_TAILS = ("queue_time_mean", "max_rate", "max_conversation_rate", "startup_s")


def kind_of(metric: Metric) -> Kind:
    """Which metrics it is as noisy as."""
    if metric.unit is Unit.SHARE:
        return Kind.SHARE
    if metric.stat in _TAILS or metric.family == "largest_stall" or metric.name in _LIKE_TAILS:
        return Kind.TAIL
    if metric.family in _GAPS and metric.stat == "p50":
        return Kind.STEP
    return Kind.TTFT if (metric.family or "").startswith(_FIRST_TOKEN) else Kind.TPOT


def prior_for(metric: Metric, hardware: str) -> Prior:
    """The default prior of a metric on a kind of hardware; "cpu" is noisier than any accelerator."""
    prior = (_CPU_PRIORS if hardware == "cpu" else _PRIORS)[kind_of(metric)]
    if hardware == UNKNOWN_HARDWARE:
        return replace(prior, df=_UNKNOWN_DF, source="default of GPUs, for an endpoint on unknown hardware")
    return prior


def margins_for(metric: Metric, hardware: str) -> Margins:
    """The default margins, as shares: 0.02 is 2 %, of a share 2 percentage points."""
    return (_CPU_MARGINS if hardware == "cpu" else _MARGINS)[kind_of(metric)]


def reference_margins_for(metric: Metric, hardware: str) -> Margins:
    """The default margins against a reference build on the same machine, as shares.

    Between resident servers of one build on an H200 median ITL differs by up to 0.3 % (docs/measured/h200_servers.md),
    so one per cent of it is seen. The other metrics keep the margins of stored baselines.
    """
    return _REFERENCE_STEP_MARGINS if _is_step(metric, hardware) else margins_for(metric, hardware)


def start_sd_for(metric: Metric, hardware: str) -> tuple[float, str]:
    """How much starts of one build on one GPU differ within a session: sd on the metric's scale, and its source.

    Of the decode step: the three pairs of plain servers that lived beside each other on three H200s differed by −0.29,
    +0.05 and +0.32 % in median ITL, which is an sd of 0.18 % of one start. Other metrics take the spread of sessions.
    """
    if _is_step(metric, hardware):
        return 0.0018, "from servers beside each other on H200s"
    prior = prior_for(metric, hardware)
    return prior.session_sd, prior.source


def _is_step(metric: Metric, hardware: str) -> bool:
    return kind_of(metric) is Kind.STEP and hardware != "cpu"


def scale_of(metric: Metric) -> Scale:
    """Shares differ by points, since they may be 0; everything else by its ratio."""
    return Scale.POINTS if metric.unit is Unit.SHARE else Scale.LOG


def worse_when_larger(metric: Metric) -> bool:
    """True also where neither way is better: a change is then reported as if more were worse."""
    return metric.direction is not Direction.HIGHER


#: Degrees of freedom between sessions from which a pool is used, and the weight of the prior in a pool that is quieter.
ENOUGH_DF = 8
#: Negligible margins that a FAIL against two stored sessions must exceed even if the suite shows its spread. Metrics
#: of a session can share its effect. Then two sessions show one difference, however many metrics the suite has. With
#: 8.2 margins +20 % fails in 99 % where sessions differ by 2 %, and 1 % of suites are red where all share 5 %.
MARGINS_OF_TWO_SESSIONS = 8.2


@dataclass(frozen=True, slots=True)
class SuiteSpread:
    """Spread between the stored sessions of a suite.

    Args:
        squares: kind of metric → sum of squares between sessions, in units of the prior variance between sessions.
        dfs: degrees of freedom of each sum.
    """

    squares: Mapping[Kind, float]
    dfs: Mapping[Kind, int]

    @classmethod
    def of(cls, metrics: Iterable[tuple[Kind, Prior, Sequence[float]]]) -> SuiteSpread:
        """The spread of a suite from the level of each stored session, metric by metric."""
        squares, dfs = dict.fromkeys(Kind, 0.0), dict.fromkeys(Kind, 0)
        for kind, prior, levels in metrics:
            if len(levels) > 1:
                squares[kind] += (len(levels) - 1) * variance(levels) / prior.session_sd**2
                dfs[kind] += len(levels) - 1
        return cls(squares, dfs)

    @property
    def df(self) -> int:
        return sum(self.dfs.values())

    def learnt(self, prior: Prior, kind: Kind) -> Prior:
        """The prior with the session sd that the suite shows; unchanged while the suite shows too little."""
        squares, df = self.squares.get(kind, 0.0), self.dfs.get(kind, 0)
        if df < ENOUGH_DF:
            squares, df = sum(self.squares.values()), self.df
        if df < ENOUGH_DF:
            return prior
        return replace(prior, session_sd=prior.session_sd * variance_ratio(squares, df) ** 0.5, learnt=True,
                       source="from the stored sessions of the suite")


def deciding_sessions(suite_primaries: int) -> int:
    """Stored sessions of each test from which any proven regression fails."""
    return max(3, 1 + -(-ENOUGH_DF // suite_primaries))


def variance_ratio(squares: float, df: int) -> float:
    """Variance between sessions as a multiple of the prior's. A pool below the prior is shrunk towards the prior.

    Args:
        squares, df: of the pool.
    """
    return max(squares / df, (squares + ENOUGH_DF) / (df + ENOUGH_DF))


def session_levels(sessions: Sequence[Sequence[tuple[int, float]]]) -> list[float]:
    """Level of each session over the seeds that all sessions have; empty without such a seed.

    Args:
        sessions: (seed, value) of each run, session by session.
    """
    seeds = set.intersection(*({seed for seed, _ in session} for session in sessions)) if sessions else set()
    return [
        fmean(fmean(value for seed, value in session if seed == each) for each in sorted(seeds)) for session in sessions
    ] if seeds else []
