"""Checks that the runs of a server start are steady. A server that still warms up, a heating GPU or a leak is not.

The rule is fixed (`stats.level`). The level of the runs of one start may rise or fall on a straight line, or change
between two runs. The first fifth of the first run may be slower than in other runs. Such runs are not steady if the
change is above the tolerated margin of TPOT and its p is below `ALPHA`.
`scripts/simulate_verdicts.py steadiness` measures false alarms and power. No part of a
run is cut off: a comparison pairs equal seeds, so a ramp-up of the workload cancels. MSER on single runs would call 1 %
of steady runs unsteady, because the load itself varies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import expm1, hypot, log

from pytest_llmperf.metrics import RunMetrics, find
from pytest_llmperf.results.baseline import StoredMeasurement
from pytest_llmperf.results.causes.runs import NotSteady
from pytest_llmperf.results.conditions import server_kind
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.stats.interval import mean
from pytest_llmperf.stats.level import CAUTION, FEWEST_RUNS, drift, level_change
from pytest_llmperf.stats.priors import Prior, Scale, margins_for, prior_for
from pytest_llmperf.stats.shift import SeededRun, Shift, shift

ALPHA = 0.001  # of one measurement; docs/evidence/steadiness.md has the error rates
# A cache that is off costs one seed's requests more than another's: that much of an effect may differ by seed.
BY_SEED = 0.08
FAMILY, METRIC = "tpot", "tpot_mean"
FEWEST_SESSIONS = 2
#: Fewest gaps between chunks of an answer, on average. On H200s mean TPOT of answers of four tokens differs by 17 %
#: (sd) between runs, which is no change of the server.
FEWEST_GAPS = 8


def unsteady_starts(measurement: Measurement) -> Iterator[NotSteady]:
    """A fault for each server start whose runs change their level by more than the tolerated margin.

    Starts that take turns are judged separately: the runs of a start are those with its id, wherever they stand.
    Nothing on CPUs, whose noise is not known well enough.
    """
    metric, kind = find(METRIC), measurement.conditions.get("hardware", "cpu")
    if kind == "cpu":
        return
    tolerated = margins_for(metric, kind).on(Scale.LOG).tolerated
    prior = prior_for(metric, kind)
    prior = replace(prior, run_sd=max(prior.run_sd, measurement.stored_run_sd or 0.0))
    of_starts: dict[int, list[tuple[int, RunMetrics]]] = {}
    for number, (run, metrics) in enumerate(zip(measurement.runs, measurement.metrics, strict=True), 1):
        of_starts.setdefault(run.start_id, []).append((number, metrics))
    for start, entries in of_starts.items():
        change = level_change([_tpot_by_request(metrics) for _, metrics in entries], prior, tolerated, ALPHA,
                              known=measurement.stored_run_sd is not None)
        if change is not None:
            yield NotSteady(
                first_run=entries[0][0], last_run=entries[-1][0], start_id=start, metric=METRIC,
                levels=[metrics.value(METRIC) or 0.0 for _, metrics in entries], drift=expm1(change.total), p=change.p,
                before=change.first, beginning=change.beginning or None,
            )


def stored_run_sd(stored: StoredMeasurement) -> float | None:
    """Sd of mean TPOT's logarithm between stored runs with equal seeds. A host with a large sd is noisy, so differences
    of its runs are no drift.

    None with fewer than two stored sessions.
    """
    values = [(session.runs, session.values(METRIC)) for session in stored.sessions if METRIC in session.metrics]
    sessions = [
        [(seed, log(value)) for (seed, _), value in zip(runs, metric_values, strict=True) if value]
        for runs, metric_values in values
    ]
    if len(sessions) < FEWEST_SESSIONS:
        return None
    return _stored_sd(sessions, prior_for(find(METRIC), server_kind(stored.fingerprint)))


def drift_p(
    today: Shift, stored: Sequence[Sequence[SeededRun]], tolerated: float, starts: Sequence[int] = ()
) -> float | None:
    """The p value of a drift of the new runs relative to the stored runs of their seeds; None for steady runs.

    Args:
        today: the comparison, with differences in the order of the runs.
        stored: runs of each stored session, which give the noise. The new runs cannot give it, because a drift would
            increase their noise.
        tolerated: the tolerated margin, on the metric's scale.
        starts: server start of each difference; empty for a single start. Differences between starts are no drift.
    """
    of_starts: dict[int, list[float]] = {}
    for start, difference in zip(starts or [0] * len(today.differences), today.differences, strict=True):
        of_starts.setdefault(start, []).append(difference)
    long = [differences for differences in of_starts.values() if len(differences) >= FEWEST_RUNS]
    if not long:
        return None
    noise = hypot(CAUTION * _stored_sd(stored, today.prior), BY_SEED * today.effect)
    for differences in long:
        trend = drift(differences, noise, today.prior.df)
        if not trend.steady(tolerated, ALPHA):
            return trend.p
    return None


def _stored_sd(stored: Sequence[Sequence[SeededRun]], prior: Prior) -> float:
    """Sd of a run within its session, at least that of the prior; the sd of the prior if no two sessions share a
    seed."""
    try:
        return max(prior.run_sd, shift(stored[0], stored[1:], prior).run_sd)
    except ValueError:
        return prior.run_sd


def _tpot_by_request(metrics: RunMetrics) -> list[float]:
    """TPOT of each request in send order; empty if the server does not report the data for TPOT, or if answers have few
    gaps.
    """
    gaps = [len(values) for values in metrics.by_request("itl") or () if values]
    if gaps and mean(gaps) < FEWEST_GAPS:
        return []
    return [value for values in metrics.by_request(FAMILY) or () for value in values or () if value > 0]
