"""Compare a measurement with its baseline or with a reference build, with as many runs as that takes."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmperf.judging.baseline_comparison import (
    ComparisonTerms,
    incomparable_result,
    judge_against_baseline,
    paired_runs,
)
from pytest_llmperf.judging.claim_judge import invalid_results
from pytest_llmperf.judging.reference_comparison import (
    PAIRS_OF_START,
    ReferenceTerms,
    judge_against_reference,
)
from pytest_llmperf.judging.sample import unverified
from pytest_llmperf.judging.validity import judged_by_comparison
from pytest_llmperf.metrics.failed_as_infinite import infinite_runs
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.comparisons import NoPrimaryMetric, NothingStored
from pytest_llmperf.results.check import BASELINE_COMPARISON, CheckResult, NoFurtherRuns, worst
from pytest_llmperf.results.conditions import comparable_sessions, kind_of, server_kind
from pytest_llmperf.session.arguments import spec_of
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.session.gpu_layout import GpuLayout
from pytest_llmperf.session.series import Series, run_in_turn, run_round
from pytest_llmperf.stats.decision import LOOKS
from pytest_llmperf.stats.priors import Margins


def compare_with_baseline(
    series: Series, margins: Mapping[str, Margins], *, failed_earlier: bool = False
) -> list[CheckResult]:
    """Compare with the baseline. An INCONCLUSIVE comparison measures further runs while time allows: 3, 5, 8 runs.

    Args:
        series: the series. Its measurement has the name and the primary metrics of the comparison.
        margins: margins that the test sets.
        failed_earlier: whether an earlier execution, whose runs are pooled here, was a FAIL.

    Raises:
        InfrastructureError: the baseline cannot be read, or the server or the load generator failed.
    """
    session, measurement = series.session, series.finished
    if not measurement.primaries:
        return [_nothing_to_judge(len(measurement.runs))]
    kind = kind_of(measurement.conditions)
    baselines = session.baselines.of(kind)
    stored = baselines.find(series.execution.test, measurement.baseline or "")
    if stored is None:
        nothing_stored = NothingStored(kind)
        return [CheckResult(BASELINE_COMPARISON, Verdict.NO_BASELINE, metric="baseline", cause=nothing_stored)]
    terms = baselines.terms(measurement.primaries, margins, server_kind(measurement.conditions))
    stored = comparable_sessions(stored, terms.rules)
    different = incomparable_result(measurement, stored, terms)
    if different is not None:
        return [different]
    seeds = min(len({seed for seed, _ in session.runs}) for session in stored.sessions)
    started_ns = session.clock.now_ns()
    earlier_runs = measurement.only(lambda run: run.execution != series.number)
    looked_at = 0 if failed_earlier else paired_runs(earlier_runs, stored)
    while True:
        measurement = series.finished
        elapsed_s = (session.clock.now_ns() - started_ns) / 1e9
        ended_by = _why_no_further_runs(series, terms, elapsed_s, session.settings.extension_limit_s)
        errors = invalid_results(
            [("", measurement, {*series.judged_metrics, *judged_by_comparison(terms.primaries)})], session.settings
        )
        results = errors or judge_against_baseline(measurement, stored, terms, looked_at, ended_by)
        looked_at = paired_runs(measurement, stored)
        further = None if ended_by else next((look for look in LOOKS if look > looked_at), None)
        if worst(results) is not Verdict.INCONCLUSIVE or further is None:
            return results
        series.extend(further - looked_at, seeds=seeds)
        if paired_runs(series.finished, stored) == looked_at:
            return results  # none of these seeds is stored, so more of these runs cannot decide


def compare_with_reference(execution: Execution, series: Series, reference: EngineSpec) -> list[CheckResult]:
    """Measure the candidate and the reference build in turn and judge. An INCONCLUSIVE result measures further pairs.

    On one GPU set, the first start of each build makes 3, 5 and 8 pairs; a second start of each build makes 8 more
    pairs. On several sets, each round starts the builds anew. Candidate and reference send new runs for these pairs, so
    that both builds are measured under equal conditions.

    Args:
        execution: of the test.
        series: the series. Its measurement has the primary metrics of the comparison.
        reference: the same specification on the reference build.

    Raises:
        InfrastructureError: a server or the load generator failed.
    """
    session, measurement = series.session, series.finished
    if not measurement.primaries:
        return [_nothing_to_judge(len(measurement.runs))]
    candidate = spec_of(series.engine)
    sides = [execution.begin(series.twin(engine, label, (other,))) for engine, label, other in (
        (candidate, "candidate", reference), (reference, "reference", candidate))]
    layout = session.layout(candidate) if series.several_at_once else GpuLayout()
    together = len(layout.sets) == 1 and session.pool.lives_beside(candidate, [reference])
    placements = layout.placements(candidate, reference)
    set_of: dict[int, int] = {}  # each round adds its server starts, and the terms show them to the judge
    kind, server = kind_of(measurement.conditions), server_kind(measurement.conditions)
    suite_primaries = session.baselines.of(kind).terms(measurement.primaries, {}).suite_primaries
    terms = ReferenceTerms(measurement.primaries, server, suite_primaries, {}, layout.looks, set_of)
    judged = {*series.judged_metrics, *judged_by_comparison(terms.primaries)}
    started_ns, pairs, block = session.clock.now_ns(), 0, 1
    for look in layout.looks:
        if len(layout.sets) > 1:
            block = run_round(sides[0], sides[1], placements, block, set_of)
            placements.reverse()  # so that a drift of the difference between the GPUs cancels
        else:
            if look > PAIRS_OF_START:
                session.pool.release()
            # Servers that started together become steady together. Of two that run one after the other, one goes on at
            # the second look and the other starts anew.
            block = run_in_turn(sides, look - pairs, block, together=together, steady=together or bool(pairs))
            sides.reverse()
        by_label = {side.label: side.finished for side in sides}
        elapsed_s = (session.clock.now_ns() - started_ns) / 1e9
        out_of_time = look != max(layout.looks) and elapsed_s >= session.settings.extension_limit_s
        errors = invalid_results([(label, by_label[label], judged) for label in sorted(by_label)], session.settings)
        results = errors or judge_against_reference(
            by_label["candidate"], by_label["reference"], terms, pairs,
            NoFurtherRuns.OUT_OF_TIME if out_of_time else None)
        pairs = look
        if worst(results) is not Verdict.INCONCLUSIVE or out_of_time:
            break
    return results


def _why_no_further_runs(
    series: Series, terms: ComparisonTerms, elapsed_s: float, limit_s: float
) -> NoFurtherRuns | None:
    """Why the comparison measures no further runs; None if further runs are possible."""
    if not series.repeatable:  # what repeats a seed would find its own prompts, and new seeds have no stored partner
        return NoFurtherRuns.CACHE_NOT_RESET
    if any(infinite_runs(name, series.finished.metrics) for name in terms.primaries):
        return NoFurtherRuns.VALUES_INFINITE
    if unverified(terms.primaries, series.finished.metrics):
        return NoFurtherRuns.TOKENS_UNVERIFIED
    return None if elapsed_s < limit_s else NoFurtherRuns.OUT_OF_TIME


def _nothing_to_judge(runs: int) -> CheckResult:
    return CheckResult(BASELINE_COMPARISON, Verdict.ERROR, metric="baseline", cause=NoPrimaryMetric(runs))
