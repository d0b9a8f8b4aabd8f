"""Judges whether a metric of later runs is worse than that of earlier runs, by how much, and with which confidence.

Comparisons with a stored baseline, with a reference build, of two releases and of two settings of flags estimate the
noise from different data. Scale, margins, verdicts and results are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_llmperf.judging.ratios import start_sd_prior
from pytest_llmperf.metrics import Metric, Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import Cause, CheckResult, Facts
from pytest_llmperf.results.conditions import server_kind
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.results.session_spread import readings
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.decision import (
    PASS_CONFIDENCE,
    Difference,
    MetricComparison,
    decide,
    detectable_with_more,
)
from pytest_llmperf.stats.interval import Interval
from pytest_llmperf.stats.priors import (
    Margins,
    Scale,
    margins_for,
    prior_for,
    reference_margins_for,
    scale_of,
    start_sd_for,
    worse_when_larger,
)
from pytest_llmperf.stats.ratio import paired_difference
from pytest_llmperf.stats.shift import SeededRun, Shift, shift

#: One-sided confidence of a difference between two settings of flags.
SETTINGS_CONFIDENCE = 0.99
#: Conditions of a measurement by another load generator: its name, and whether the sides were measured in turn.
TOOL, MADE_IN_TURN = "tool", "made in turn"
#: Fewest runs per side with which files of other load generators decide, and degrees of freedom of their prior sds.
FEWEST_RUNS_OF_TOOL, DF_OF_TOOL = 3, 6.0
#: Numbers of further runs per side that a comparison may recommend, and a number that stands for infinitely many runs.
FURTHER_RUNS, MOST_FURTHER_RUNS = (2, 3, 5, 8, 13, 21, 34), 1000


def seeded_runs(metric: Metric, measurement: Measurement) -> list[SeededRun]:
    """Seed and value of each run on the metric's scale; failed requests count as infinitely slow.

    Raises:
        ValueError: a value is missing or is outside the metric's scale.
    """
    return readings([run.seed for run in measurement.runs], measurement.values_with_failures(metric.name), metric)


def judge_sessions(metric: Metric, before: Measurement, after: Measurement, alpha: float) -> CheckResult:
    """Compare a session with an earlier session by the rules for a baseline of one session, with the error `alpha`.

    Two sessions cannot show the spread between sessions, so the prior counts as the known spread. A file of another
    load generator names no hardware, so the prior has few degrees of freedom and grows with the spread of the runs, and
    fewer than three runs per side decide nothing. If the files were made in turn, the spread between server starts
    takes the place of the spread between sessions.

    Raises:
        ValueError: a value is missing, infinite or 0, or the two have no seed in common.
    """
    hardware = server_kind(after.conditions)
    by_tool, in_turn = (name in after.conditions for name in (TOOL, MADE_IN_TURN))
    fresh, stored = seeded_runs(metric, after), [seeded_runs(metric, before)]
    prior = replace(prior_for(metric, hardware), learnt=True)
    if by_tool:
        prior = replace(prior, df=DF_OF_TOOL, learnt=False)
    if in_turn:
        prior = replace(prior, session_sd=start_sd_for(metric, hardware)[0])
    estimate = shift(fresh, stored, prior)
    estimate = replace(estimate, prior=replace(prior, learnt=True))  # the prior has grown, so any proven change counts
    default = reference_margins_for(metric, hardware) if in_turn else margins_for(metric, hardware)
    margins = (after.margins.get(metric.name) or default).on(scale_of(metric))
    (verdict,) = decide([MetricComparison(estimate, margins)], alpha)
    facts = _power(metric, estimate, margins, alpha)
    if by_tool and facts["runs"] < FEWEST_RUNS_OF_TOOL:
        verdict, facts = Verdict.INCONCLUSIVE, {**facts, "deciding_runs": FEWEST_RUNS_OF_TOOL}
    return change_result("change", metric, verdict, level=estimate.level, difference=estimate, margins=margins,
                         confidence=PASS_CONFIDENCE, facts=facts)


def _power(metric: Metric, estimate: Shift, margins: Margins, alpha: float) -> Facts:
    """The smallest change that these runs detect, and the number of further runs per side that would lower it."""
    def detectable(more: int) -> float:
        return change_of(metric, detectable_with_more(estimate, margins.negligible, alpha, more))

    now, limit = (abs(detectable(more)) for more in (0, MOST_FURTHER_RUNS))
    further = next((more for more in FURTHER_RUNS if abs(detectable(more)) <= 1.1 * limit), FURTHER_RUNS[-1])
    runs = min(len(estimate.differences), estimate.stored_runs)
    facts: Facts = {"runs": runs, "smallest_detectable": detectable(0), "session_sd": estimate.session_sd}
    if abs(detectable(further)) < 0.9 * now:
        facts |= {"further_runs": further, "detectable_then": detectable(further)}
    return facts


def is_proven_worse(
    metric: Metric, runs: Sequence[float | None], others: Sequence[float | None], hardware: str
) -> bool:
    """Whether runs on one server start are worse than the runs with the same seeds on a start with other flags.

    The standard error includes the spread between server starts, because each setting has one start.

    Args:
        metric: what is compared.
        runs, others: value of each run, in the order of the seeds; None for a missing or infinite value.
        hardware: hardware kind of the servers.
    """
    scale, larger_is_worse = scale_of(metric), worse_when_larger(metric)
    try:
        differences = [scale.read(value, worse_when_larger=larger_is_worse)
                       - scale.read(other, worse_when_larger=larger_is_worse)
                       for value, other in zip(runs, others, strict=False)]
        difference = paired_difference(differences, start_sd_prior(metric, hardware).value)
    except ValueError:  # no runs, or a value that is missing or 0
        return False
    return difference.lower(SETTINGS_CONFIDENCE) > 0


def unusable_result(comparison: str, metric: Metric, verdict: Verdict, cause: Cause) -> CheckResult:
    """The result for values that cannot be compared."""
    return CheckResult(f"{comparison} {metric.name}", verdict, metric.name, cause=cause)


def change_of(metric: Metric, distance: float) -> float:
    """A distance on the metric's scale, above 0 for worse, as the change of the metric: 0.02 for +2 %."""
    return scale_of(metric).change(distance, worse_when_larger=worse_when_larger(metric))


def change_result(
    comparison: str, metric: Metric, verdict: Verdict, *, level: float, difference: Difference, margins: Margins,
    confidence: float, cause: Cause | None = None, facts: Facts | None = None,
) -> CheckResult:
    """The result of a comparison of a metric.

    `after` is the mean of the later runs on the metric's scale (a geometric mean for latencies). `before` is that mean
    less the effect: the level of the other side on the seeds of the later runs, weighted as the effect weights it.

    Args:
        comparison: first word of the subject.
        level: mean of the later compared runs on the metric's scale.
        difference, margins: as distances on the metric's scale.
        confidence: one-sided confidence of each limit of the interval.
    """
    larger_is_worse = worse_when_larger(metric)
    limits = (difference.lower(confidence), difference.upper(confidence))
    low, high = sorted(change_of(metric, limit) for limit in limits)
    before, after = (scale_of(metric).in_unit(reading, worse_when_larger=larger_is_worse)
                     for reading in (level - difference.effect, level))
    return CheckResult(
        subject=f"{comparison} {metric.name}",
        verdict=verdict,
        metric=metric.name,
        unit=Unit.CHANGE if scale_of(metric) is Scale.LOG else Unit.POINTS,
        comparison=Comparison.AT_MOST if larger_is_worse else Comparison.AT_LEAST,
        limit=change_of(metric, margins.tolerated),
        estimate=change_of(metric, difference.effect),
        before=before,
        after=after,
        interval=Interval(low, high, confidence),
        cause=cause,
        facts=facts or {},
    )
