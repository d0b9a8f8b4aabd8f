"""Suite runs that are compared with stored baselines.

Each test is compared with stored sessions of three runs (seeds 0, 1, 2), with looks at 3, 5 and 8 new runs. Variances,
priors, margins, looks, α and decisions are the package's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, expm1, log1p

import numpy as np
import numpy.typing as npt

from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import LARGEST_TOLERATED
from pytest_llmperf.stats.decision import (
    LOOKS,
    PASS_CONFIDENCE,
    MetricComparison,
    alpha_at,
    alpha_of_execution,
    decide,
    passing_distance,
)
from pytest_llmperf.stats.priors import (
    Margins,
    Prior,
    Scale,
    SuiteSpread,
    kind_of,
    margins_for,
    prior_for,
    session_levels,
)
from pytest_llmperf.stats.shift import SeededRun, sessions_by_host, shift

Array = npt.NDArray[np.float64]
FAIL, INCONCLUSIVE, IMPROVED = Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.IMPROVED
SEEDS = 3
RERUNS = 3


@dataclass(frozen=True)
class Noise:
    """Random changes of a metric's logarithm in sessions where nothing changed.

    Args:
        run, session: standard deviations between runs and between sessions.
        run_df, session_df: degrees of freedom of a Student's t distribution with this sd; None for a normal
            distribution.
        spoilt: share of runs that are 20 % slower in every metric of their test.
        host: sd between hosts. All stored sessions are from one host, and the new session is from a second host.
        common: share of the variance between sessions that all metrics of the suite have in common.
    """

    run: float
    session: float
    run_df: float | None = None
    session_df: float | None = None
    spoilt: float = 0.0
    host: float = 0.0
    common: float = 0.0


@dataclass(frozen=True)
class Judged:
    """A metric as the package judges it.

    Args:
        name: of the metric.
        hardware: whose prior and default margins hold.
        named: margins that the test names, as shares; they are not learnt from stored sessions.
        sds: of its runs and sessions, in place of those of the suite's noise.
    """

    name: str
    hardware: str = "h200"
    named: Margins | None = None
    sds: tuple[float, float] | None = None

    @property
    def prior(self) -> Prior:
        return prior_for(find(self.name), self.hardware)

    @property
    def margins(self) -> Margins:
        return (self.named or margins_for(find(self.name), self.hardware)).on(Scale.LOG)


TPOT, TTFT, STEP = Judged("tpot_mean"), Judged("ttft_p50"), Judged("itl_p50")


@dataclass(frozen=True)
class Suite:
    """Tests with their metrics, against stored sessions.

    Args:
        noise: of all metrics.
        sessions: stored ones.
        tests: metrics of each test.
        effect: change of the logarithm of every metric.
        most_runs: of the last look.
        learns_margins: whether tolerated margins are learnt from the stored sessions.
    """

    noise: Noise
    sessions: int = 10
    tests: tuple[tuple[Judged, ...], ...] = ((TPOT,) * 3,) * 10
    effect: float = 0.0
    most_runs: int = LOOKS[-1]
    learns_margins: bool = False

    @property
    def metrics(self) -> list[Judged]:
        return [metric for test in self.tests for metric in test]


def of_tests(metric: Judged, metrics: int, per_test: int = 1) -> tuple[tuple[Judged, ...], ...]:
    """Tests with so many metrics in all."""
    return ((metric,) * per_test,) * (metrics // per_test)


@dataclass(frozen=True)
class SuiteRuns:
    """Independent suite runs, each with baselines of its own.

    Args:
        verdicts: suite runs × tests × metrics of a test.
        runs: runs of each test.
    """

    verdicts: list[list[list[Verdict]]]
    runs: list[int]

    def red(self, wanted: Verdict = FAIL) -> list[bool]:
        """For each suite run, whether a metric has this verdict."""
        return [any(wanted in test for test in suite) for suite in self.verdicts]

    def tests_with(self, verdict: Verdict) -> float:
        """Share of tests with such a metric."""
        return float(np.mean([verdict in test for suite in self.verdicts for test in suite]))

    def share(self, verdict: Verdict) -> float:
        """Share of metrics with this verdict."""
        return float(np.mean([each is verdict for suite in self.verdicts for test in suite for each in test]))


def simulate(suite: Suite, suites: int, rng: np.random.Generator) -> SuiteRuns:
    """Simulated runs of a suite; `suites` is their number."""
    outcomes = [judged(suite, *draw(suite, rng)) for _ in range(suites)]
    return SuiteRuns([[verdicts for verdicts, _ in tests] for tests in outcomes],
                     [runs for tests in outcomes for _, runs in tests])


def draw(suite: Suite, rng: np.random.Generator, today: int = LOOKS[-1]) -> tuple[Array, Array]:
    """Logarithms of today's runs (metrics × runs) and of the stored runs (metrics × sessions × seeds)."""
    noise, metrics = suite.noise, suite.metrics
    run, session = np.array([metric.sds or (noise.run, noise.session) for metric in metrics]).T
    sizes = [len(test) for test in suite.tests]

    def runs(*more: int) -> Array:
        spoilt = np.repeat(rng.random((len(sizes), *more)) < noise.spoilt, sizes, axis=0)
        sd = run.reshape(-1, *[1] * len(more))
        return np.asarray(sd * standard(noise.run_df, (len(metrics), *more), rng) + np.log(1.2) * spoilt)

    own, common = (standard(noise.session_df, (size, suite.sessions + 1), rng) for size in (len(metrics), 1))
    levels = session[:, None] * ((1 - noise.common) ** 0.5 * own + noise.common**0.5 * common)
    other_host = noise.host * 2**0.5 * rng.standard_normal((len(metrics), 1))
    return (runs(today) + levels[:, :1] + other_host + suite.effect,
            runs(suite.sessions, SEEDS) + levels[:, 1:, None])


def standard(df: float | None, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Values of sd 1: normal, or Student's t."""
    return rng.standard_normal(shape) if df is None else rng.standard_t(df, shape) * ((df - 2) / df) ** 0.5


@dataclass(frozen=True)
class Compared:
    """One metric with the prior and the margins of a comparison.

    Args:
        runs: today's, more than a look takes.
        stored: runs of each stored session.
    """

    runs: Sequence[SeededRun]
    stored: Sequence[Sequence[SeededRun]]
    prior: Prior
    margins: Margins


def compared(suite: Suite, today: Array, stored: Array) -> list[list[Compared]]:
    """The metrics of each test, with the spread and the margins that the stored sessions show."""
    hosts, here = ["a"] * suite.sessions, "b" if suite.noise.host else "a"
    sessions = [sessions_by_host([seeded(runs) for runs in metric], hosts, here) for metric in stored.tolist()]
    spread = SuiteSpread.of((kind_of(find(metric.name)), metric.prior, session_levels(runs))
                            for metric, runs in zip(suite.metrics, sessions, strict=True))
    metrics = []
    for metric, runs, earlier in zip(suite.metrics, today.tolist(), sessions, strict=True):
        prior = spread.learnt(metric.prior, kind_of(find(metric.name)))
        learns = suite.learns_margins and prior.learnt and metric.named is None
        margins = learnt_margins(metric.margins, earlier, prior) if learns else metric.margins
        metrics.append(Compared(seeded(runs), earlier, prior, margins))
    ends = np.cumsum([len(test) for test in suite.tests])
    return [metrics[end - len(test):end] for end, test in zip(ends, suite.tests, strict=True)]


def learnt_margins(margins: Margins, stored: Sequence[Sequence[SeededRun]], prior: Prior) -> Margins:
    """As `baseline.learnt_margins`: the newest session compared with all stored ones, in whole per cent."""
    share = ceil(100 * expm1(passing_distance(shift(stored[-1], stored, prior)))) / 100
    return replace(margins, tolerated=max(margins.tolerated, log1p(share))) if share < LARGEST_TOLERATED else margins


def seeded(runs: Sequence[float]) -> list[SeededRun]:
    return [(number % SEEDS, value) for number, value in enumerate(runs)]


def judged(suite: Suite, today: Array, stored: Array) -> list[tuple[list[Verdict], int]]:
    """The verdicts and the number of runs of each test."""
    metrics = len(suite.metrics)
    return [execute(test, metrics, most_runs=suite.most_runs) for test in compared(suite, today, stored)]


def execute(test: Sequence[Compared], suite_primaries: int, *, pooled: int = 0, failed: bool = False,
            number: int = 1, most_runs: int | None = None) -> tuple[list[Verdict], int]:
    """Look after look, until the test fails or nothing of it is open. Returns the verdicts and the number of runs.

    Args:
        suite_primaries: metrics of the suite.
        pooled: runs of earlier executions.
        failed: whether the execution before was a FAIL.
        number: of the execution.
        most_runs: of the last look; None for all looks.
    """
    looked_at, count = (0 if failed else pooled), pooled + LOOKS[0]
    while True:
        alpha = alpha_at(count, looked_at, primaries=len(test), suite_primaries=suite_primaries)
        comparisons = [MetricComparison(shift(metric.runs[:count], metric.stored, metric.prior), metric.margins)
                       for metric in test]
        verdicts = decide(comparisons, alpha, 1 - alpha_of_execution(1 - PASS_CONFIDENCE, number))
        further = next((look for look in LOOKS if count < look <= (most_runs or look)), None)
        if FAIL in verdicts or INCONCLUSIVE not in verdicts or further is None:
            return verdicts, count
        looked_at, count = count, further


def execute_again(suite: Suite, rng: np.random.Generator) -> list[list[Verdict]]:
    """Worst verdict of each test after each execution: a test is executed again while it is INCONCLUSIVE or FAIL.

    All runs of a test are of one session, and its executions pool them.
    """
    metrics, worst = len(suite.metrics), []
    for test in compared(suite, *draw(suite, rng, LOOKS[-1] + RERUNS * LOOKS[0])):
        ends: list[Verdict] = []
        runs = 0
        while len(ends) <= RERUNS and (not ends or ends[-1] in (FAIL, INCONCLUSIVE)):
            verdicts, runs = execute(test, metrics, pooled=runs, failed=ends[-1:] == [FAIL], number=len(ends) + 1)
            ends.append(max(verdicts, key=lambda verdict: verdict.severity))
        worst.append(ends + ends[-1:] * (1 + RERUNS - len(ends)))
    return worst
