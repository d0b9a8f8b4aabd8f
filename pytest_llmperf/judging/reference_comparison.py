"""Two builds in one session: the candidate's runs against the reference's runs of the same seeds, made in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from pytest_llmperf.judging.change import change_of, change_result, seeded_runs, unusable_result
from pytest_llmperf.judging.claim_judge import runs_apart
from pytest_llmperf.judging.ratios import start_sd_prior, unusable_values
from pytest_llmperf.judging.sample import unverified
from pytest_llmperf.metrics.registry import Metric, find
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.comparisons import (
    BetterThanReference,
    ChangeUndecided,
    ValueNotComparable,
    WorseThanReference,
)
from pytest_llmperf.results.causes.limits import MetricUnavailable
from pytest_llmperf.results.check import REFERENCE_COMPARISON, Cause, CheckResult, Facts, NoFurtherRuns
from pytest_llmperf.results.conditions import build_differences
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.stats.decision import (
    ENOUGH_SESSIONS,
    PASS_CONFIDENCE,
    SUITE_ALPHA,
    alpha_of_execution,
    at_each_look,
    verdict_of,
)
from pytest_llmperf.stats.interval import t_quantile
from pytest_llmperf.stats.priors import Margins, reference_margins_for, scale_of, start_sd_for
from pytest_llmperf.stats.ratio import PairedDifference, StartSd, paired_difference, without_gpus

#: Pairs at each look, and the share of α that is spent by then. The last look has two starts per side.
REFERENCE_LOOKS = {3: 0.4, 5: 0.6, 8: 0.8, 16: 1.0}
#: After this number of pairs both servers start anew, because more pairs of the same starts add little information.
PAIRS_OF_START = 8
#: Degrees of freedom of the between-start sd. Few starts have shown it, so a FAIL must allow for a larger sd. If
#: starts differ by twice the stated sd, 14 % of suites of 15 metrics are red where it counts as known, 1.4 % with 8.
START_DF = 8.0
#: Probability with which the smallest detectable change fails.
POWER = 0.9


@dataclass(frozen=True, slots=True)
class ReferenceTerms:
    """How a candidate is compared with its reference build.

    Args:
        primaries: the metrics that are judged.
        kind: hardware kind of the machine that serves, for margins and the spread between server starts.
        suite_primaries: how many metrics the whole suite judges.
        margins: metric → margins, for metrics without the default margins.
        looks: number of pairs at each look → the share of α that is spent by then.
        set_of: GPU set of each server start, if the comparison uses several GPU sets. Then runs of one block are made
            at the same time, and the difference between two sets that the builds exchange is removed.
    """

    primaries: tuple[str, ...]
    kind: str
    suite_primaries: int
    margins: Mapping[str, Margins]
    looks: Mapping[int, float] = field(default_factory=lambda: REFERENCE_LOOKS)
    set_of: Mapping[int, int] = field(default_factory=dict)


def judge_against_reference(
    candidate: Measurement, reference: Measurement, terms: ReferenceTerms, looked_at: int = 0,
    no_further_runs: NoFurtherRuns | None = None,
) -> list[CheckResult]:
    """One result per primary metric.

    FAIL: the candidate is proven to be worse by more than the negligible margin. PASS: a regression is proven to be
    smaller than the tolerated margin. IMPROVED: the candidate is proven to be better by more than the negligible
    margin. INCONCLUSIVE: none of the three is proven. The two builds ran on the same machine in the same session, so
    differences between hosts and days do not matter. The standard error has two parts: the between-start sd, from a
    prior and the starts of this comparison, and the sd of the paired differences.

    Args:
        candidate, reference: runs of the same seeds in the same order.
        terms: how they are compared.
        looked_at: how many pairs there were at the look before, 0 at the first: looks share the error.
        no_further_runs: why an open comparison measures no more pairs; None if it does.
    """
    pairs = len(candidate.runs)
    suite_primaries = max(terms.suite_primaries, len(terms.primaries))
    alpha = alpha_of_execution(SUITE_ALPHA / suite_primaries, candidate.executions)
    spent = _spent(pairs, terms.looks) - _spent(looked_at, terms.looks)
    context = _Look(candidate, reference, terms, alpha * spent, alpha, no_further_runs)
    results = [context.judged(find(name)) for name in terms.primaries]
    return [replace(result, facts={**result.facts, **_build_facts(candidate, reference)}) for result in results]


def _build_facts(candidate: Measurement, reference: Measurement) -> Facts:
    """What the builds resolved differently; that their installations have two names is no difference of the builds."""
    differences = build_differences(reference.conditions, candidate.conditions)
    changes = {each.field: [each.stored, each.now] for each in differences if each.field != "installation"}
    return {"engine": candidate.conditions.get("engine", ""), "build_changes": changes} if changes else {}


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at all pairs; `alpha` is of one metric at this look, `final_alpha` of one metric over all looks."""

    candidate: Measurement
    reference: Measurement
    terms: ReferenceTerms
    alpha: float
    final_alpha: float
    no_further_runs: NoFurtherRuns | None

    def judged(self, metric: Metric) -> CheckResult:
        for side, measurement in (("candidate", self.candidate), ("reference", self.reference)):
            if unusable := unusable_values(metric.name, measurement.metrics, side):
                missing = isinstance(unusable, MetricUnavailable)
                return unusable_result(REFERENCE_COMPARISON, metric,
                                       Verdict.ERROR if missing else Verdict.INCONCLUSIVE, unusable)
            if uncounted := unverified([metric.name], measurement.metrics):
                return unusable_result(REFERENCE_COMPARISON, metric, Verdict.INCONCLUSIVE, uncounted)
        try:
            pairs = paired_readings(metric, self.candidate, self.reference)
        except ValueError as error:
            return unusable_result(REFERENCE_COMPARISON, metric, Verdict.ERROR, ValueNotComparable(str(error)))
        scale, start_sd = scale_of(metric), start_sd_of(metric, self.terms.kind)
        differences, of_sets = without_gpus([candidate - reference for candidate, reference in pairs], self._sets)
        difference = paired_difference(
            differences, start_sd.value, starts=self._starts, apart=self._apart, start_df=START_DF,
            start_of=self._start_of, fitted=len(of_sets),
        )
        margins = self.terms.margins.get(metric.name) or reference_margins_for(metric, self.terms.kind)
        level = fmean(candidate for candidate, _ in pairs)
        result = self._result(metric, level, difference, margins.on(scale), start_sd)
        if not of_sets:
            return result
        return replace(result, facts={**result.facts, "gpu_difference": change_of(metric, max(of_sets, key=abs))})

    @property
    def _by_pair(self) -> list[tuple[Run, Run]]:
        """The runs of candidate and reference, pair by pair."""
        candidate, reference = (
            {(run.execution, run.seed): run for run in side.runs} for side in (self.candidate, self.reference)
        )
        return [(candidate[key], reference[key]) for key in sorted(candidate.keys() & reference.keys())]

    @property
    def _sets(self) -> list[tuple[int, int]]:
        """The GPU sets of candidate and reference in each pair; empty if there is one set."""
        set_of = self.terms.set_of
        return [(set_of[of_a.start_id], set_of[of_b.start_id]) for of_a, of_b in self._by_pair] if set_of else []

    @property
    def _apart(self) -> list[int]:
        """Per pair, number of runs from the reference's run to the candidate's run."""
        if self.terms.set_of:
            return [(of_a.block or 0) - (of_b.block or 0) for of_a, of_b in self._by_pair]
        return [-distance for distance in runs_apart(self.candidate, self.reference)]

    @property
    def _starts(self) -> tuple[int, int]:
        candidate, reference = (
            len({run.start_id for run in side.runs}) for side in (self.candidate, self.reference)
        )
        return candidate, reference

    @property
    def _start_of(self) -> list[int]:
        """Which start of both sides made each pair; empty if a server made pairs with two servers of the other side.
        """
        starts = [(of_a.start_id, of_b.start_id) for of_a, of_b in self._by_pair]
        distinct = set(starts)
        own_servers = all(len(set(side)) == len(distinct) for side in zip(*distinct, strict=True))
        return [start for start, _ in starts] if own_servers else []

    def _result(
        self, metric: Metric, level: float, difference: PairedDifference, margins: Margins, start_sd: StartSd
    ) -> CheckResult:
        confidence = at_each_look(PASS_CONFIDENCE, ENOUGH_SESSIONS)
        verdict = verdict_of(
            difference, margins, confidence,
            worse=self.alpha > 0 and difference.lower(1 - self.alpha) > margins.negligible,
            better=self.alpha > 0 and difference.upper(1 - self.alpha) < -margins.negligible,
        )
        starts = self._starts
        facts: Facts = {
            "pairs": difference.pairs, "starts_a": starts[0], "starts_b": starts[1], "start_sd": difference.start_sd,
            "start_sd_source": start_sd.source, "negligible": change_of(metric, margins.negligible),
            "smallest_detectable": change_of(
                metric, _smallest_detectable(difference, margins.negligible, self.final_alpha)),
            "reference": build_text(self.reference),
        }
        if self.no_further_runs is not None and verdict is Verdict.INCONCLUSIVE:
            facts["no_further_runs"] = self.no_further_runs.value
        causes: dict[Verdict, Cause] = {
            Verdict.FAIL: WorseThanReference(facts["negligible"]), Verdict.IMPROVED: BetterThanReference(),
            Verdict.INCONCLUSIVE: ChangeUndecided(facts["negligible"], facts.get("no_further_runs")),
        }
        return change_result(
            REFERENCE_COMPARISON, metric, verdict, level=level, difference=difference, margins=margins,
            confidence=confidence, cause=causes.get(verdict), facts=facts,
        )


def paired_readings(metric: Metric, candidate: Measurement, reference: Measurement) -> list[tuple[float, float]]:
    """Candidate and reference on the metric's scale, pair by pair; the larger of the two is worse.

    Raises:
        ValueError: a value is missing or is outside the metric's scale.
    """
    of_candidate, of_reference = (
        {(run.execution, seed): value for run, (seed, value) in zip(side.runs, seeded_runs(metric, side), strict=True)}
        for side in (candidate, reference)
    )
    return [(of_candidate[key], of_reference[key]) for key in sorted(of_candidate.keys() & of_reference.keys())]


def build_text(measurement: Measurement) -> str:
    """The build of a measurement: "vllm 0.26.0"."""
    conditions = measurement.conditions
    return " ".join(filter(None, (conditions.get("engine"), conditions.get("engine.version"))))


def _spent(pairs: int, looks: Mapping[int, float]) -> float:
    return max((share for look, share in looks.items() if pairs >= look), default=0.0)


def start_sd_of(metric: Metric, kind: str) -> StartSd:
    """The expected sd between server starts. A CPU that others use moves as much within a session as between sessions.
    """
    return start_sd_prior(metric, kind) if kind == "cpu" else StartSd(*start_sd_for(metric, kind))


def _smallest_detectable(difference: PairedDifference, negligible: float, alpha: float) -> float:
    """Smallest difference that would have failed with probability `POWER`, on the metric's scale."""
    quantiles: Sequence[float] = [t_quantile(confidence, difference.df) for confidence in (1 - alpha, POWER)]
    return negligible + sum(quantiles) * difference.se
