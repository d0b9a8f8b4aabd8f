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

Margins were chosen by simulation (scripts/simulate_verdicts.py), for a median TTFT that moves by 2.7 % between
sessions. With margins of 2 and 5 % the comparison is INCONCLUSIVE in 50 % (ten stored sessions) to 75 % (one) of cases.
With margins of 3 and 15 % the comparison is INCONCLUSIVE in 0.2 to 7 % of cases.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from pytest_llmperf.metrics.registry import Metric
from pytest_llmperf.metrics.units import Direction, Unit
from pytest_llmperf.model.engine import UNKNOWN_HARDWARE
from pytest_llmperf.stats.prior import Margins, Prior, Scale


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
        return 0.0025, "from servers beside each other on H200s"
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
