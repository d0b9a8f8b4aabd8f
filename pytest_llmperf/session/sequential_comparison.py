"""Compare a measurement with its baseline, with as many runs as that takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from statistics import median
from typing import TYPE_CHECKING

from pytest_llmperf.baseline.fingerprint import comparable_sessions
from pytest_llmperf.baseline.paths import kind_of, server_kind
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.judging.baseline_comparison import (
    ComparisonTerms,
    NoFurtherRuns,
    incomparable_result,
    judge_against_baseline,
    paired_runs,
)
from pytest_llmperf.judging.claim_judge import invalid_results
from pytest_llmperf.judging.sample import unverified
from pytest_llmperf.judging.start_spread import noisiest
from pytest_llmperf.judging.steadiness import stored_run_sd
from pytest_llmperf.judging.validity import judged_by_comparison
from pytest_llmperf.metrics.failed_as_infinite import infinite_runs
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement
from pytest_llmperf.results.cause import Cause
from pytest_llmperf.results.check import BASELINE_COMPARISON, CheckResult, worst
from pytest_llmperf.session.series import Series
from pytest_llmperf.stats.looks import LOOKS
from pytest_llmperf.stats.prior import Margins
from pytest_llmperf.stats.ratio import StartSd

if TYPE_CHECKING:
    from pytest_llmperf.session.perf_session import PerfSession


class Baselines:
    """The stored baselines as a session sees them: what is known of a whole kind is read once."""

    def __init__(self, store: Store, host: str, across: tuple[str, ...]) -> None:
        self.store = store
        self.host = host
        self.across = across
        self._primaries: dict[str, int] = {}
        self._run_sds: dict[str, list[float]] = {}
        self._start_sds: dict[tuple[str, str], StartSd | None] = {}

    def find(self, test: str, kind: str, name: str) -> StoredMeasurement | None:
        """The stored measurement of that name.

        Raises:
            BaselineError: its file cannot be read or believed.
        """
        baseline = self.store.read(test, kind)
        return None if baseline is None else baseline.measurements.get(name)

    def run_sd(self, test: str, kind: str) -> float | None:
        """How much runs of a test differ within a session: see `stored_run_sd`.

        A test that stores nothing is as noisy as the median of those that do; None where none does. A file that cannot
        be read or believed says nothing here: who compares with it hears of it.
        """
        with suppress(BaselineError):
            baseline = self.store.read(test, kind)
            if baseline is not None and (test_sds := _run_sds(baseline)):
                return max(test_sds)
        if kind not in self._run_sds:
            self._run_sds[kind] = [run_sd for baseline in self.store.readable(kind) for run_sd in _run_sds(baseline)]
        others = self._run_sds[kind]
        return median(others) if others else None

    def start_sd(self, test: str, kind: str, metric: str, server: str) -> StartSd | None:
        """How much server starts differ at most, by what stored sessions show: see `stored_start_sd`.

        Stored sessions of the test itself speak first. A test that stores too few is taken to be as noisy as the
        noisiest test of its kind whose comparison judges this metric. A file that cannot be read says nothing here.

        Args:
            test, kind, metric: whose, on which hardware, of what.
            server: hardware kind of the machine that serves.
        """
        with suppress(BaselineError):
            baseline = self.store.read(test, kind)
            own = None if baseline is None else noisiest(baseline.measurements.values(), metric, server, "of this test")
            if own is not None:
                return own
        if (kind, metric) not in self._start_sds:
            others = [
                measurement
                for baseline in self.store.readable(kind)
                for measurement in baseline.measurements.values()
                if metric in measurement.primaries
            ]
            self._start_sds[kind, metric] = noisiest(others, metric, server, f"of the noisiest test on {kind}")
        return self._start_sds[kind, metric]

    def terms(
        self, kind: str, primaries: tuple[str, ...], margins: Mapping[str, Margins], server: str = ""
    ) -> ComparisonTerms:
        """How a measurement of this kind is compared.

        Args:
            kind: that names the folder.
            primaries, margins: as of `ComparisonTerms`.
            server: hardware kind of the machine that serves, for noise and margins; "": the same kind.
        """
        if kind not in self._primaries:
            stored = self.store.read_all(kind).values()
            self._primaries[kind] = sum(
                len(measurement.primaries) for each in stored for measurement in each.measurements.values()
            )
        return ComparisonTerms(primaries, margins, self._primaries[kind], server or kind, self.host, self.across)


def _run_sds(baseline: Baseline) -> list[float]:
    run_sds = (stored_run_sd(measurement) for measurement in baseline.measurements.values())
    return [value for value in run_sds if value is not None]


def compare_with_baseline(
    series: Series,
    session: PerfSession,
    named: Collection[str],
    margins: Mapping[str, Margins],
    *,
    failed_earlier: bool = False,
) -> list[CheckResult]:
    """Judge against the baseline; where that is INCONCLUSIVE and time allows, buy runs: 3, 5, 8.

    Args:
        series: its measurement says under which name and by which metrics it is compared.
        named: metrics whose deviations the test judges elsewhere (`judged_by_requirements`).
        margins: the test's own.
        failed_earlier: whether an earlier execution, whose runs are pooled here, was a FAIL.

    Raises:
        InfrastructureError: the baseline cannot be read, or the server or the load generator failed.
    """
    measurement = series.finished
    if not measurement.primaries:
        return [_nothing_to_judge(len(measurement.runs))]
    kind = kind_of(measurement.conditions)
    stored = session.baselines.find(series.test, kind, measurement.baseline or "")
    if stored is None:
        return [_nothing_stored(kind)]
    terms = session.baselines.terms(kind, measurement.primaries, margins, server_kind(measurement.conditions))
    stored = comparable_sessions(stored, terms.across)
    different = incomparable_result(measurement, stored, terms)
    if different is not None:
        return [different]
    seeds = min(len({seed for seed, _ in session.runs}) for session in stored.sessions)
    started_ns = session.clock.now_ns()
    earlier_runs = measurement.only(lambda run: run.execution != series.execution)
    looked_at = 0 if failed_earlier else paired_runs(earlier_runs, stored)
    while True:
        measurement = series.finished
        elapsed_s = (session.clock.now_ns() - started_ns) / 1e9
        ended_by = _why_no_further_runs(series, terms, elapsed_s, session.settings.extension_limit_s)
        errors = invalid_results(
            [("", measurement, {*named, *judged_by_comparison(terms.primaries)})], session.settings
        )
        results = errors or judge_against_baseline(measurement, stored, terms, looked_at, ended_by)
        looked_at = paired_runs(measurement, stored)
        further = None if ended_by else next((look for look in LOOKS if look > looked_at), None)
        if worst(results) is not Verdict.INCONCLUSIVE or further is None:
            return results
        series.extend(further - looked_at, seeds=seeds)
        if paired_runs(series.finished, stored) == looked_at:
            return results  # none of these seeds is stored: more of them would not tell either


def _why_no_further_runs(
    series: Series, terms: ComparisonTerms, elapsed_s: float, limit_s: float
) -> NoFurtherRuns | None:
    """Why no more runs are bought; None where they can be."""
    if not series.repeatable:  # what repeats a seed would find its own prompts, and new seeds have no stored partner
        return NoFurtherRuns.CACHE_NOT_RESET
    if any(infinite_runs(name, series.finished.metrics) for name in terms.primaries):
        return NoFurtherRuns.VALUES_INFINITE
    if unverified(terms.primaries, series.finished.metrics):
        return NoFurtherRuns.TOKENS_UNVERIFIED
    return None if elapsed_s < limit_s else NoFurtherRuns.OUT_OF_TIME


def _nothing_to_judge(runs: int) -> CheckResult:
    return CheckResult(BASELINE_COMPARISON, Verdict.ERROR, metric="baseline", cause=Cause.NO_PRIMARY_METRIC,
                       facts={"runs": runs})


def _nothing_stored(kind: str) -> CheckResult:
    return CheckResult(BASELINE_COMPARISON, Verdict.NO_BASELINE, metric="baseline", cause=Cause.NOTHING_STORED,
                       facts={"kind": kind})
