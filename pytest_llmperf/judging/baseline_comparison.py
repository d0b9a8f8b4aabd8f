"""A measurement against its stored baseline: comparable at all, then how much worse, metric by metric."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pytest_llmperf.baseline.fingerprint import Difference, differences
from pytest_llmperf.baseline.rules import YOUNG_BELOW
from pytest_llmperf.errors import SloError
from pytest_llmperf.judging.sample import unverified
from pytest_llmperf.judging.steadiness import drift_problem
from pytest_llmperf.metrics.failed_as_infinite import infinite_value_problem, value_with_failures
from pytest_llmperf.metrics.registry import Metric, find
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import StoredMeasurement, StoredSession
from pytest_llmperf.results.check import BASELINE_COMPARISON, CheckResult
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.stats.decision import (
    PASS_CONFIDENCE,
    MetricComparison,
    at_each_look,
    decide,
    smallest_detectable_effect,
)
from pytest_llmperf.stats.looks import (
    ENOUGH_SESSIONS,
    LOOKS,
    SUITE_ALPHA,
    alpha_at,
    alpha_of_execution,
    only_gross,
    spent_share,
)
from pytest_llmperf.stats.prior import Margins, Scale
from pytest_llmperf.stats.priors import margins_for, prior_for, scale_of, worse_when_larger
from pytest_llmperf.stats.shift import Shift, sessions_by_host, shift

# Throughput of an open loop is the rate at which requests arrive, whatever the server does.
CLOSED_LOOP = ("ttft_p50", "tpot_mean", "output_throughput")
OPEN_LOOP = ("ttft_p50", "tpot_mean")
SEARCHED = ("max_rate",)
OFTEN_COMPARED_ACROSS = ("driver", "cuda", "engine.version")


@dataclass(frozen=True, slots=True)
class NoFurtherRuns:
    """Why an open comparison buys no more runs, and what would let it.

    Args:
        cause, remedy: parts of a sentence.
    """

    cause: str
    remedy: str


OUT_OF_TIME = NoFurtherRuns("--extension-limit (or extension_limit_s) ended it", "allow more")
CACHE_NOT_RESET = NoFurtherRuns(
    "none is sent again, for the cache is not emptied between runs",
    f"measure and store as many: perf.measure(…, runs={LOOKS[-1]})",
)
UNVERIFIED = NoFurtherRuns(
    "none is bought, for no run confirms a token count", "make the server count tokens per chunk"
)
INFINITE_VALUES = NoFurtherRuns(
    "none is bought, for requests failed and no run brings their answers", "see that fewer fail"
)


@dataclass(frozen=True, slots=True)
class ComparisonTerms:
    """How a measurement is compared.

    Args:
        primaries: the metrics that are judged.
        margins: metric → tolerated margin, for metrics without the default margin.
        suite_primaries: how many metrics the whole suite judges.
        kind: hardware kind of the machine that serves, for noise and margins.
        host: digest of this host's name.
        across: conditions that may differ.
    """

    primaries: tuple[str, ...]
    margins: Mapping[str, Margins]
    suite_primaries: int
    kind: str
    host: str
    across: tuple[str, ...] = ()


def default_primaries(
    measurement: Measurement, stored: StoredMeasurement | None, *, closed_loop: bool
) -> tuple[str, ...]:
    """What is judged where a test names nothing: of the usual metrics those that this measurement or the baseline has.

    One that the baseline has and today's runs have not is judged, too: a metric does not vanish unnoticed.
    """
    usual = SEARCHED if measurement.searched else CLOSED_LOOP if closed_loop else OPEN_LOOP
    stored_primaries = () if stored is None else stored.primaries
    return tuple(name for name in usual if name in stored_primaries or None not in measurement.values(name))


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
    negligible, tolerated = given if isinstance(given, tuple) else (0.4 * given, given)
    if tolerated >= 1:  # whoever writes 10 for 10 % would tolerate everything
        raise ValueError(f"{tolerated:g} is {100 * tolerated:g} %, and {tolerated:g} % is {tolerated / 100:g}")
    return Margins(negligible, tolerated)


def incomparable_result(
    measurement: Measurement, stored: StoredMeasurement, terms: ComparisonTerms
) -> CheckResult | None:
    """INCOMPARABLE with the fields that differ; None where the comparison means something.

    Args:
        stored: its sessions that were measured alike (`comparable_sessions`).
    """
    differing = differences(stored, measurement.conditions, terms.primaries, terms.across)
    missing = [name for name in terms.primaries if not _sessions_with(stored, name)]
    if not differing and not missing:
        return None
    reasons = [*map(str, differing), *(f"{name} is not stored under these conditions" for name in missing)]
    unknown = [name for name in terms.across if name not in measurement.conditions and name not in stored.fingerprint]
    sentences = [*reasons, *_similar_names(unknown, {difference.field for difference in differing})]
    return CheckResult(
        BASELINE_COMPARISON,
        Verdict.INCOMPARABLE,
        metric="fingerprint",
        reason=f"{'; '.join(sentences)}. Measure under the stored conditions, "
        f"{_compare_across_hint(reasons, differing)}or start the "
        'baseline anew with --update-baselines --accept "REASON".',
    )


def _compare_across_hint(reasons: Sequence[str], differing: Sequence[Difference]) -> str:
    """How to compare all the same, where nothing differs but what is often the very thing to test."""
    fields = [difference.field for difference in differing if difference.field in OFTEN_COMPARED_ACROSS]
    return f"let them differ: compare_across = {json.dumps(fields)}, " if len(fields) == len(reasons) else ""


def _similar_names(unknown: Sequence[str], differing: Collection[str]) -> list[str]:
    """Unknown names in compare_across that are near a field that differs; others may be another engine's.

    Near is also what such a field is called after its dot: version, of engine.version.
    """
    last_parts = {field.rpartition(".")[2]: field for field in differing}
    near = [
        (name, [last_parts[name]] if name in last_parts else get_close_matches(name, differing, n=1, cutoff=0.8))
        for name in unknown
    ]
    return [f"compare_across names {name}; did you mean {matches[0]}?" for name, matches in near if matches]


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
        no_further_runs: why what stays open is not looked at again, and what these runs could have seen is told; None:
            it is.
    """
    pass_confidence = 1 - alpha_of_execution(1 - PASS_CONFIDENCE, measurement.executions)
    suite_primaries = max(terms.suite_primaries, len(terms.primaries))
    metrics = [find(name) for name in terms.primaries]
    comparisons: dict[str, MetricComparison] = {}
    unusable: dict[str, CheckResult] = {}
    for metric in metrics:
        if infinite_problem := infinite_value_problem(metric.name, measurement.metrics):
            unusable[metric.name] = _unusable_result(
                metric, Verdict.INCONCLUSIVE, f"cannot be compared: {infinite_problem}."
            )
            continue
        try:
            comparison, why = comparison_of(measurement, stored, metric, terms)
        except ValueError as error:
            unusable[metric.name] = _unusable_result(metric, Verdict.ERROR, f"cannot be compared: {error}.")
            continue
        if why is not None:
            unusable[metric.name] = _unusable_result(metric, Verdict.ERROR, why)
        elif uncounted := unverified([metric.name], measurement.metrics):
            unusable[metric.name] = _unusable_result(metric, Verdict.INCONCLUSIVE, f"{uncounted}.")
        else:
            comparisons[metric.name] = comparison
    # Sessions of other hosts than today's count once per host, so a metric may know fewer of them than are stored.
    session_count = min((comparison.shift.sessions for comparison in comparisons.values()), default=1)
    paired = paired_runs(measurement, stored)
    alpha = alpha_at(paired, looked_at, sessions=session_count, primaries=len(terms.primaries),
                     suite_primaries=suite_primaries)
    most_runs = paired if no_further_runs else LOOKS[-1]
    power = Power(SUITE_ALPHA / suite_primaries * spent_share(most_runs, session_count), pass_confidence,
                  only_gross(most_runs, session_count), no_further_runs)
    decided = decide(list(comparisons.values()), alpha, pass_confidence, gross=only_gross(paired, session_count))
    verdicts = dict(zip(comparisons, decided, strict=True))
    return [
        unusable.get(metric.name)
        or _result(metric, verdicts[metric.name], comparisons[metric.name], power)
        for metric in metrics
    ]


def paired_runs(measurement: Measurement, stored: StoredMeasurement) -> int:
    """How many of its runs have a seed that is stored: others are no evidence in a comparison."""
    seeds = {seed for session in stored.sessions for seed, _ in session.runs}
    return sum(run.seed in seeds for run in measurement.runs)


def _unusable_result(metric: Metric, verdict: Verdict, reason: str) -> CheckResult:
    return CheckResult(f"{BASELINE_COMPARISON} {metric.name}", verdict, metric.name, reason=reason)


def comparison_of(
    measurement: Measurement, stored: StoredMeasurement, metric: Metric, terms: ComparisonTerms
) -> tuple[MetricComparison, str | None]:
    """The comparison, and why today's runs are no evidence; None where they are.

    Raises:
        ValueError: a value is missing, or has no place on the metric's scale.
    """
    scale, larger_is_worse = scale_of(metric), worse_when_larger(metric)

    def runs(seeds: Sequence[int], values: Sequence[float | None]) -> list[tuple[int, float]]:
        read = (scale.read(value, worse_when_larger=larger_is_worse) for value in values)
        return list(zip(seeds, read, strict=True))

    fresh = runs(
        [run.seed for run in measurement.runs], [value_with_failures(run, metric.name) for run in measurement.metrics]
    )
    sessions = _sessions_with(stored, metric.name)
    stored_runs = [runs([seed for seed, _ in session.runs], session.values(metric.name)) for session in sessions]
    grouped = sessions_by_host(stored_runs, [session.host for session in sessions], terms.host)
    margins = (terms.margins.get(metric.name) or margins_for(metric, terms.kind)).on(scale)
    estimate = shift(fresh, grouped, prior_for(metric, terms.kind))
    stored_seeds = {seed for session in grouped for seed, _ in session}
    starts = [run.start_id for run in measurement.runs if run.seed in stored_seeds]
    return MetricComparison(estimate, margins), drift_problem(estimate, grouped, margins.tolerated, starts)


def _sessions_with(stored: StoredMeasurement, name: str) -> list[StoredSession]:
    """Those that know the metric; one that was measured before it was asked for has no value of it."""
    return [session for session in stored.sessions if all(value is not None for value in session.values(name))]


@dataclass(frozen=True, slots=True)
class Power:
    """What a comparison could have seen.

    Args:
        alpha: that it may spend in the end on a FAIL; 0: nothing can fail.
        confidence: of a PASS.
        gross: only gross regressions can fail (`looks.only_gross`).
        no_further_runs: why there are no more runs; None where there are.
    """

    alpha: float
    confidence: float
    gross: bool
    no_further_runs: NoFurtherRuns | None

    def smallest_seen(self, found: Shift, negligible: float) -> float:
        """Smallest effect that would have failed with 90 % probability; infinite where nothing can fail."""
        return smallest_detectable_effect(found.gross() if self.gross else found, negligible, self.alpha)

    @property
    def too_few(self) -> str:
        """Until when some or all regressions cannot fail; "" where all of the error may be spent."""
        if not self.alpha:
            return f"before {LOOKS[0]} runs"
        return f"before {LOOKS[-1]} runs against fewer than {ENOUGH_SESSIONS} sessions" if self.gross else ""


def _result(metric: Metric, verdict: Verdict, comparison: MetricComparison, power: Power) -> CheckResult:
    shift, margins, scale = comparison.shift, comparison.margins, scale_of(metric)
    larger_is_worse = worse_when_larger(metric)

    def shown(distance: float) -> str:
        change = 100 * scale.change(distance, worse_when_larger=larger_is_worse)
        return f"{change:+.1f} {'%' if scale is Scale.LOG else 'pp'}"

    confidence = at_each_look(power.confidence, shift.sessions)
    low, high = sorted(
        (shift.lower(confidence), shift.upper(confidence)),
        key=lambda distance: scale.change(distance, worse_when_larger=larger_is_worse),
    )
    smallest = shown(power.smallest_seen(shift, margins.negligible)) if power.alpha else ""
    would = f" ({_seen(smallest, power)})" if verdict is Verdict.PASS else ""
    against = f"{len(shift.differences)} runs against {shift.stored_runs} of {_sessions_text(shift)}"
    return CheckResult(
        subject=f"{BASELINE_COMPARISON} {metric.name}",
        verdict=verdict,
        metric=metric.name,
        limit=f"{'≤' if larger_is_worse else '≥'} {shown(margins.tolerated)}",
        measured=shown(shift.effect) + would,
        interval=f"{100 * (2 * confidence - 1):.3g} % CI {shown(low)} … {shown(high)}",
        n=against,
        reason=_reason(verdict, f"{metric.name} is {shown(shift.effect)} off its baseline", shown(margins.negligible),
                       _open(shift, smallest, power)),
    )


def _sessions_text(shift: Shift) -> str:
    if shift.provisional:
        return f"one session (a screen: spread between sessions {100 * shift.session_sd:.1f} %, {shift.prior.source})"
    return f"{shift.sessions} sessions"


def _reason(verdict: Verdict, change_text: str, negligible: str, undecided: str) -> str:
    if verdict is Verdict.FAIL:
        return f"{change_text}, proven to be worse by more than {negligible}"
    if verdict is Verdict.IMPROVED:
        return f"{change_text}: better. Take it in with --update-baselines"
    return undecided if verdict is Verdict.INCONCLUSIVE else ""


def _seen(smallest: str, power: Power) -> str:
    """What a PASS could have missed."""
    if not smallest:
        return f"nothing fails {power.too_few}"
    return f"would have seen {smallest}" + (f", nothing smaller {power.too_few}" if power.too_few else "")


def _open(found: Shift, smallest: str, power: Power) -> str:
    """Why a comparison is INCONCLUSIVE, and what would decide it."""
    if power.too_few and power.no_further_runs:
        below = f" below {smallest}" if smallest else ""
        more = ", or store more sessions" if power.gross else ""
        return (
            f"nothing{below} fails {power.too_few}, and with {len(found.differences)} {power.no_further_runs.cause}: "
            f"{power.no_further_runs.remedy}{more}"
        )
    more = "store more sessions" if found.sessions < YOUNG_BELOW else "compare with the baseline's build today"
    return (f"runs differ by {100 * found.run_sd:.1f} % and sessions by {100 * found.session_sd:.1f} % (sd): "
            f"{more}, or give this metric a wider margin")
