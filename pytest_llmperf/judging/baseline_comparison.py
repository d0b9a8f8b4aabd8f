"""A measurement against its stored baseline: comparable at all, then how much worse, metric by metric."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from pytest_llmperf.errors import SloError
from pytest_llmperf.judging.change import change_of, change_result, seeded_runs, unusable_result
from pytest_llmperf.judging.outcome import with_unseen_gpu
from pytest_llmperf.judging.ratios import infinite_values
from pytest_llmperf.judging.sample import unverified
from pytest_llmperf.judging.steadiness import drift_p
from pytest_llmperf.metrics.registry import Metric, find
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import StoredMeasurement
from pytest_llmperf.results.causes.comparisons import (
    Better,
    ConditionsDiffer,
    RunsDrift,
    RunsTooFew,
    SpreadTooLarge,
    ValueNotComparable,
    Worse,
)
from pytest_llmperf.results.check import BASELINE_COMPARISON, Cause, CheckResult, Facts, NoFurtherRuns
from pytest_llmperf.results.conditions import (
    DEFAULT_RULES,
    VERSION,
    FieldRules,
    build_changes,
    build_differences,
    differences,
    session_conditions,
)
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.results.session_spread import grouped_sessions, sessions_with, suite_spread
from pytest_llmperf.stats.decision import (
    LOOKS,
    PASS_CONFIDENCE,
    SUITE_ALPHA,
    MetricComparison,
    alpha_at,
    alpha_of_execution,
    at_each_look,
    decide,
    spent_share,
)
from pytest_llmperf.stats.priors import (
    NEGLIGIBLE_PART,
    Margins,
    SuiteSpread,
    deciding_sessions,
    kind_of,
    margins_for,
    prior_for,
    scale_of,
)
from pytest_llmperf.stats.shift import shift

# Median ITL is the decode step, the metric that hosts move least. Mean TPOT adds the pauses between steps, such as
# prefills, and with speculative decoding the tokens of a step. docs/evidence/compared_metrics.md has the spreads.
OPEN_LOOP = ("itl_p50", "tpot_mean")
# Throughput of an open loop is the rate at which requests arrive, whatever the server does.
CLOSED_LOOP = (*OPEN_LOOP, "output_throughput")
PREFILL = ("ttft_mean",)
SEARCHED = ("max_rate",)


@dataclass(frozen=True, slots=True)
class ComparisonTerms:
    """How a measurement is compared.

    Args:
        primaries: the metrics that are judged.
        margins: metric → tolerated margin, for metrics without the default margin.
        suite_primaries: how many metrics the whole suite judges.
        kind: hardware kind of the machine that serves, for noise and margins.
        host: digest of this host's name.
        rules: which fields may differ.
        suite: how much the stored sessions of the whole suite differ; None: only those of this measurement are known.
    """

    primaries: tuple[str, ...]
    margins: Mapping[str, Margins]
    suite_primaries: int
    kind: str
    host: str
    rules: FieldRules = DEFAULT_RULES
    suite: SuiteSpread | None = None


def default_primaries(
    measurement: Measurement, stored: StoredMeasurement | None, *, closed_loop: bool
) -> tuple[str, ...]:
    """The metrics that a comparison judges if the test names none.

    Answers of one token have no decode step, so mean TTFT is judged in its place. A primary metric of the baseline is
    judged even if today's runs lack the metric: a metric does not vanish unnoticed.
    """
    stored_primaries = () if stored is None else stored.primaries

    def judged(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name in stored_primaries or None not in measurement.values(name))

    if measurement.searched:
        return judged(SEARCHED)
    primaries = judged(CLOSED_LOOP if closed_loop else OPEN_LOOP)
    return primaries if OPEN_LOOP[0] in primaries else judged(PREFILL) + primaries


def margins_from(given: Mapping[str, float | tuple[float, float]] | None) -> dict[str, Margins]:
    """A test's own margins: tolerated alone, or (negligible, tolerated), as shares below 1. None: it has none.

    Raises:
        SloError: no such metric, or no such margins.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise SloError(f'margins={given!r}: name the margin of each metric, as in margins={{"ttft_p50": 0.1}}.')
    margins = {}
    for name, value in given.items():
        metric = find(name)
        try:
            margins[metric.name] = _margins(value)
        except (TypeError, ValueError) as error:
            why = "a margin is a number" if isinstance(error, TypeError) else error
            raise SloError(f"margins={{{name!r}: {value!r}}}: {why}. Write 0.05 for 5 % (5 points, of a share), or "
                           "(0.02, 0.05).") from error
    return margins


def _margins(given: float | tuple[float, float]) -> Margins:
    negligible, tolerated = given if isinstance(given, tuple) else (NEGLIGIBLE_PART * given, given)
    if tolerated >= 1:  # whoever writes 10 for 10 % would tolerate everything
        raise ValueError(f"a margin must be below 1, and {tolerated:g} % is {tolerated / 100:g}")
    return Margins(negligible, tolerated)


def incomparable_result(
    measurement: Measurement, stored: StoredMeasurement, terms: ComparisonTerms
) -> CheckResult | None:
    """INCOMPARABLE with the fields that differ; None if the comparison means something.

    Args:
        stored: its sessions that were measured alike (`comparable_sessions`).
    """
    differing = differences(stored, measurement.conditions, terms.primaries, terms.rules, measurement.workload)
    missing = [name for name in terms.primaries if not sessions_with(stored, name)]
    changes = build_changes(stored, stored.sessions, measurement.conditions)
    field_names = {*measurement.conditions, *stored.fingerprint}
    misspelt = _similar_names([name for name in terms.rules.same_build if name not in field_names], changes)
    if not differing and not missing and not misspelt:
        return None
    fields = [difference.field for difference in differing]
    unknown = [name for name in terms.rules.compare_across if name not in field_names]
    cause = ConditionsDiffer(
        {difference.field: [difference.stored, difference.now] for difference in differing}, missing,
        _similar_names(unknown, fields), misspelt, [name for name in fields if name in terms.rules.same_build],
    )
    return CheckResult(BASELINE_COMPARISON, Verdict.INCOMPARABLE, metric="fingerprint", cause=cause)


def _similar_names(unknown: Sequence[str], differing: Collection[str]) -> dict[str, str]:
    """Unknown name in a setting → the differing field that it resembles; others may be another engine's fields.

    A field also resembles its part after the last dot: version, of engine.version.
    """
    last_parts = {field.rpartition(".")[2]: field for field in differing}
    matches = {
        name: [last_parts[name]] if name in last_parts else get_close_matches(name, differing, n=1, cutoff=0.8)
        for name in unknown
    }
    return {name: fields[0] for name, fields in matches.items() if fields}


def judge_against_baseline(
    measurement: Measurement,
    stored: StoredMeasurement,
    terms: ComparisonTerms,
    looked_at: int,
    no_further_runs: NoFurtherRuns | None = None,
) -> list[CheckResult]:
    """One result per primary metric.

    Args:
        measurement: today's runs, paired with the stored ones by seed.
        looked_at: how many paired runs there were at the look before, 0 at the first: looks share the error. Also 0
            where an earlier execution was a FAIL: an alarm that was raised costs nothing to keep.
        no_further_runs: why an undecided comparison measures no further runs. The result then states the smallest
            detectable change. None if further runs can follow.
    """
    pass_confidence = 1 - alpha_of_execution(1 - PASS_CONFIDENCE, measurement.executions)
    suite_alpha = alpha_of_execution(SUITE_ALPHA, 1 + measurement.earlier_looks)
    suite_primaries = max(terms.suite_primaries, len(terms.primaries))
    if terms.suite is None:
        terms = replace(terms, suite=suite_spread([stored], terms.kind, terms.host))
    metrics = [find(name) for name in terms.primaries]
    comparisons: dict[str, MetricComparison] = {}
    unusable: dict[str, CheckResult] = {}
    for metric in metrics:
        if infinite := infinite_values(metric.name, measurement.metrics):
            unusable[metric.name] = unusable_result(BASELINE_COMPARISON, metric, Verdict.INCONCLUSIVE, infinite)
            continue
        try:
            comparison, drift_p = comparison_of(measurement, stored, metric, terms)
        except ValueError as error:
            unusable[metric.name] = unusable_result(BASELINE_COMPARISON, metric, Verdict.ERROR,
                                                    ValueNotComparable(str(error)))
            continue
        if drift_p is not None:
            unusable[metric.name] = unusable_result(BASELINE_COMPARISON, metric, Verdict.ERROR, RunsDrift(drift_p))
        elif uncounted := unverified([metric.name], measurement.metrics):
            unusable[metric.name] = unusable_result(BASELINE_COMPARISON, metric, Verdict.INCONCLUSIVE, uncounted)
        else:
            comparisons[metric.name] = comparison
    paired = paired_runs(measurement, stored)
    alpha = alpha_at(paired, looked_at, primaries=len(terms.primaries), suite_primaries=suite_primaries,
                     suite_alpha=suite_alpha)
    most_runs = paired if no_further_runs else LOOKS[-1]
    power = Power(suite_alpha / suite_primaries * spent_share(most_runs), pass_confidence,
                  deciding_sessions(suite_primaries), no_further_runs)
    decided = decide(list(comparisons.values()), alpha, pass_confidence)
    verdicts = dict(zip(comparisons, decided, strict=True))
    results = [
        unusable.get(metric.name)
        or _result(metric, verdicts[metric.name], comparisons[metric.name], power)
        for metric in metrics
    ]
    return [_with_build(result, measurement, stored, terms.host) for result in results]


def _with_build(
    result: CheckResult, measurement: Measurement, stored: StoredMeasurement, host: str
) -> CheckResult:
    """The result with what it says of builds and hosts: which builds are compared, and whether it is provisional.

    A comparison is provisional where no stored session is of today's build on today's host. This changes no verdict:
    the spread between hosts is part of the interval (`sessions_by_host`), so a FAIL stands on another host, too.
    """
    sessions = sessions_with(stored, result.metric)
    conditions = measurement.conditions
    changed = [session for session in sessions
               if build_differences(session_conditions(stored, session), conditions)]
    facts: Facts = {"engine": conditions.get("engine", ""), "compared_sessions": len(sessions)}
    if changed:
        facts["build_changes"] = build_changes(stored, changed, conditions)
        facts["changed_sessions"] = len(changed)
    provisional = not any(session.host == host and session not in changed for session in sessions)
    if provisional:
        facts["stored_hosts"] = len({session.host for session in sessions})
        facts["host_stored"] = any(session.host == host for session in sessions)
        versions = (session.differs.get(VERSION, stored.fingerprint.get(VERSION)) for session in sessions)
        facts["stored_versions"] = list(dict.fromkeys(version or "unknown" for version in versions))
    result = replace(result, facts={**result.facts, **facts}) if changed or provisional else result
    return with_unseen_gpu(result, conditions)


def paired_runs(measurement: Measurement, stored: StoredMeasurement) -> int:
    """Number of runs whose seed is in the baseline. Other runs do not count in the comparison."""
    seeds = {seed for session in stored.sessions for seed, _ in session.runs}
    return sum(run.seed in seeds for run in measurement.runs)


def comparison_of(
    measurement: Measurement, stored: StoredMeasurement, metric: Metric, terms: ComparisonTerms
) -> tuple[MetricComparison, float | None]:
    """The comparison, and the p value of a drift that makes the new runs invalid; None for steady runs.

    Raises:
        ValueError: a value is missing or is outside the metric's scale.
    """
    fresh = seeded_runs(metric, measurement)
    grouped = grouped_sessions(stored, metric, terms.host)
    margins = (terms.margins.get(metric.name) or _learnt_margins(stored, metric, terms.kind)).on(scale_of(metric))
    prior = prior_for(metric, terms.kind)
    estimate = shift(fresh, grouped, prior if terms.suite is None else terms.suite.learnt(prior, kind_of(metric)))
    stored_seeds = {seed for session in grouped for seed, _ in session}
    starts = [run.start_id for run in measurement.runs if run.seed in stored_seeds]
    return MetricComparison(estimate, margins), drift_p(estimate, grouped, margins.tolerated, starts)


def _learnt_margins(stored: StoredMeasurement, metric: Metric, hardware: str) -> Margins:
    """The default margins, with the tolerated one that the stored sessions allow if it is wider."""
    default = margins_for(metric, hardware)
    return replace(default, tolerated=max(default.tolerated, stored.tolerated.get(metric.name, 0.0)))


@dataclass(frozen=True, slots=True)
class Power:
    """The power of a comparison.

    Args:
        alpha: error probability of a FAIL over all looks; with 0 no metric can fail.
        confidence: confidence of a PASS.
        deciding_sessions: stored sessions of each test from which more than gross regressions can fail.
        no_further_runs: why no further runs follow; None if further runs can follow.
    """

    alpha: float
    confidence: float
    deciding_sessions: int
    no_further_runs: NoFurtherRuns | None

    def facts(self, comparison: MetricComparison) -> Facts:
        """What can fail: nothing in too few runs, only gross regressions against too few sessions of the suite, or any
        regression."""
        facts: Facts = {"deciding_sessions": self.deciding_sessions} if comparison.gross else {}
        return facts if self.alpha else {"deciding_runs": LOOKS[0], **facts}


def _result(metric: Metric, verdict: Verdict, comparison: MetricComparison, power: Power) -> CheckResult:
    shift, margins = comparison.shift, comparison.margins
    confidence = at_each_look(power.confidence, shift.sessions)
    facts: Facts = {
        "runs": len(shift.differences), "stored_runs": shift.stored_runs, "stored_sessions": shift.sessions,
        "run_sd": shift.run_sd, "session_sd": shift.session_sd, "session_sd_source": shift.prior.source,
        "negligible": change_of(metric, margins.negligible), **power.facts(comparison),
    }
    if power.alpha:
        facts["smallest_detectable"] = change_of(metric, comparison.smallest_detectable(power.alpha))
    causes: dict[Verdict, Cause] = {
        Verdict.FAIL: Worse(facts["negligible"]), Verdict.IMPROVED: Better(),
        Verdict.INCONCLUSIVE: SpreadTooLarge(shift.sessions, shift.run_sd, shift.session_sd),
    }
    if verdict is Verdict.INCONCLUSIVE and not power.alpha and power.no_further_runs:
        facts["no_further_runs"] = power.no_further_runs.value
        causes[verdict] = RunsTooFew(facts["runs"], power.no_further_runs.value,
                                     deciding_runs=facts.get("deciding_runs"),
                                     deciding_sessions=facts.get("deciding_sessions"))
    return change_result(
        BASELINE_COMPARISON, metric, verdict, level=shift.level, difference=shift, margins=margins,
        confidence=confidence, cause=causes.get(verdict), facts=facts,
    )
