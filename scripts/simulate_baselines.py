"""How often comparisons with stored baselines are wrong, on noise whose truth is known.

A suite run has M primary metrics, two or three to a test. Each test is compared with D stored sessions of three runs
(seeds 0, 1, 2), with looks at 3, 5 and 8 new runs. The variances, priors, margins, looks and α are the package's own.
Only the decisions are written once more, for arrays: tests/unit/stats/test_simulated_verdicts.py holds them against
`decide`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit
from scipy.stats import beta, rankdata
from simulate_claims import heading, row

from pytest_llmperf.calibration.page import share
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.engine import UNKNOWN_HARDWARE
from pytest_llmperf.results.baseline import LARGEST_TOLERATED
from pytest_llmperf.stats.decision import (
    GROSS_FACTOR,
    GROSS_MARGINS,
    LEARNT_PASS,
    LOOKS,
    PASS_CONFIDENCE,
    SUITE_ALPHA,
    alpha_at,
    alpha_of_execution,
    at_each_look,
)
from pytest_llmperf.stats.layout import layout
from pytest_llmperf.stats.priors import (
    _MARGINS,
    _PRIORS,
    ENOUGH_DF,
    Kind,
    Margins,
    Prior,
    Scale,
    kind_of,
    margins_for,
    prior_for,
    variance_ratio,
)
from pytest_llmperf.stats.shift import spread

Array = npt.NDArray[np.float64]
PASS, IMPROVED, INCONCLUSIVE, FAIL = range(4)
SEEDS = (0, 1, 2)
CHUNK = 500
RERUNS = 3
MOST_RUNS = LOOKS[-1] + RERUNS * LOOKS[0]
#: Run and session sd: the grid that every A/A table goes through.
GRID = ((0.005, 0.003), (0.01, 0.005), (0.02, 0.01), (0.035, 0.02))
TTFT_NOISE = (0.02, 0.027)


@dataclass(frozen=True)
class Noise:
    """Random changes of a metric's logarithm in A/A sessions.

    Args:
        run, session: standard deviations between runs and between sessions.
        run_df, session_df: degrees of freedom of a Student's t distribution with this sd; None for a normal
            distribution.
        spoilt: share of runs that are 20 % slower in every metric.
        host: sd between hosts; all stored sessions are from one host, and the new session is from a second host.
        common: share of the variance between sessions that all metrics of the suite have in common.
        metric_runs, metric_sessions: the two sds of each metric, in place of `run` and `session`.
    """

    run: float
    session: float
    run_df: float | None = None
    session_df: float | None = None
    spoilt: float = 0.0
    host: float = 0.0
    common: float = 0.0
    metric_runs: tuple[float, ...] = ()
    metric_sessions: tuple[float, ...] = ()


@dataclass(frozen=True)
class MetricRule:
    """What a comparison knows of a metric before it sees data, with margins as distances.

    `named`: the test names the margins, so they are not learnt.
    """

    kind: Kind
    prior: Prior
    margins: Margins
    named: bool = False


def rule_of(kind: Kind) -> MetricRule:
    return MetricRule(kind, _PRIORS[kind], _MARGINS[kind].on(Scale.LOG))


TPOT = rule_of(Kind.TPOT)
#: Named by tests of the time to the first token, which depends on the host.
WIDE = Margins(0.12, 0.5)


@dataclass(frozen=True)
class Known:
    """`Prior` and `Margins` for arrays of metrics."""

    run_sd: Array
    session_sd: Array
    negligible: Array
    tolerated: Array
    df: float
    learnt: bool

    def only(self, tests: npt.NDArray[Any]) -> Known:
        """For these tests."""
        return replace(self, run_sd=self.run_sd[tests], session_sd=self.session_sd[tests],
                       negligible=self.negligible[tests], tolerated=self.tolerated[tests])

    def flat(self) -> Known:
        """The tests of all suites in one axis."""
        run, session, negligible, tolerated = (
            each.reshape(-1, each.shape[-1]) for each in (self.run_sd, self.session_sd, self.negligible, self.tolerated)
        )
        return Known(run, session, negligible, tolerated, self.df, self.learnt)


@dataclass(frozen=True)
class Suite:
    """M metrics, `per_test` to a test, against D stored sessions; `effect` on the logarithm of all of them.

    Metric i of each test has rule i, or the rules in turn where a suite has more.
    """

    noise: Noise
    sessions: int = 10
    metrics: int = 30
    per_test: int = 3
    effect: float = 0.0
    most_runs: int = LOOKS[-1]
    rules: tuple[MetricRule, ...] = (TPOT,)
    #: Tolerated margins of the metrics, learnt from their stored sessions.
    learns_margins: bool = False

    def each(self, value: Callable[[MetricRule], float]) -> Array:
        """A value of every metric's rule: 1 × tests × metrics of a test."""
        values = [value(self.rules[i % len(self.rules)]) for i in range(self.metrics)]
        return np.array(values).reshape(1, -1, self.per_test)


@dataclass(frozen=True)
class Outcome:
    """Of each suite, test and metric its verdict, and of each suite and test the runs it took."""

    verdicts: npt.NDArray[np.int64]
    runs: npt.NDArray[np.int64]

    def suites_with(self, verdict: int) -> int:
        return int((self.verdicts == verdict).any((1, 2)).sum())

    def share(self, verdict: int) -> float:
        return float((self.verdicts == verdict).mean())


    def tests_with(self, verdict: int) -> float:
        """Share of tests with such a metric."""
        return float((self.verdicts == verdict).any(-1).mean())


def simulate(suite: Suite, suites: int, rng: np.random.Generator) -> Outcome:
    """So many independent suite runs, each with a baseline of its own."""
    return joined([judged(suite, *draw(suite, min(CHUNK, suites - done), rng)) for done in range(0, suites, CHUNK)])


def joined(parts: Sequence[Outcome]) -> Outcome:
    return Outcome(np.concatenate([part.verdicts for part in parts]), np.concatenate([part.runs for part in parts]))


def draw(
    suite: Suite, suites: int, rng: np.random.Generator, today: int = LOOKS[-1]
) -> tuple[Array, Array]:
    """Today's runs (suites × tests × metrics × 8) and the stored ones (… × sessions × 3), as logarithms."""
    noise, shape = suite.noise, (suites, suite.metrics // suite.per_test, suite.per_test)
    run, session = (np.reshape(each, (1, *shape[1:], 1)) if each else one for each, one in (
        (noise.metric_runs, noise.run), (noise.metric_sessions, noise.session)))

    def runs(*more: int) -> Array:
        spoilt = rng.random((*shape[:2], 1, *more)) < noise.spoilt
        sd = run if len(more) == 1 or isinstance(run, float) else run[..., None]
        return sd * _standard(noise.run_df, (*shape, *more), rng) + np.log(1.2) * spoilt

    own, common = (_standard(noise.session_df, (*size, suite.sessions + 1), rng) for size in (shape, (suites, 1, 1)))
    levels = session * ((1 - noise.common) ** 0.5 * own + noise.common**0.5 * common)
    other_host = noise.host * 2**0.5 * rng.standard_normal((*shape, 1))
    return (runs(today) + levels[..., :1] + other_host + suite.effect,
            runs(suite.sessions, len(SEEDS)) + levels[..., 1:, None])


def known(suite: Suite, stored: Array) -> Known:
    """`SuiteSpread.learnt` and the margins for arrays."""
    shape = stored.shape[:3]
    run_sd, session_sd, negligible, tolerated = (np.broadcast_to(suite.each(value), shape) for value in (
        lambda rule: rule.prior.run_sd, lambda rule: rule.prior.session_sd, lambda rule: rule.margins.negligible,
        lambda rule: rule.margins.tolerated))
    sessions = 1 if suite.noise.host else suite.sessions
    learnt = suite.metrics * (sessions - 1) >= ENOUGH_DF
    if learnt:
        session_sd = session_sd * session_ratio(suite, stored.mean(-1).var(-1) * sessions / session_sd**2) ** 0.5
    prior = Known(run_sd, session_sd, negligible, tolerated, suite.rules[0].prior.df, learnt)
    return replace(prior, tolerated=learnt_margins(suite, prior, stored)) if suite.learns_margins and learnt else prior


def session_ratio(suite: Suite, squares: Array) -> Array:
    """Variance of sessions as a multiple of the prior's, pooled over the metric's kind or the suite."""
    kinds = np.array([list(Kind).index(suite.rules[i % len(suite.rules)].kind) for i in range(suite.metrics)])
    flat, ratio, df = squares.reshape(len(squares), -1), np.empty(squares.shape), suite.sessions - 1
    for kind in np.unique(kinds):
        chosen = kinds == kind
        pool = chosen if chosen.sum() * df >= ENOUGH_DF else np.ones_like(chosen)
        of_kind = variance_ratio(flat[:, pool].sum(-1), int(pool.sum()) * df, np.maximum)
        ratio.reshape(flat.shape)[:, chosen] = np.asarray(of_kind)[:, None]
    return ratio


def learnt_margins(suite: Suite, prior: Known, stored: Array) -> Array:
    """`learnt_margins` of the package for arrays: the newest session compared with all stored ones."""
    plan = layout(SEEDS, (SEEDS,) * suite.sessions)
    values = np.concatenate([stored[..., -1, :], stored.reshape(*stored.shape[:-2], -1)], axis=-1)
    estimated = spread(plan, plan.run_squares(values), plan.session_squares(values), prior, np.maximum)
    quantiles = [stdtrit(estimated.df, each) for each in (at_each_look(PASS_CONFIDENCE, suite.sessions), LEARNT_PASS)]
    margins = np.log1p(np.ceil(100 * np.expm1(sum(quantiles) * np.sqrt(estimated.variance))) / 100)
    named = np.broadcast_to(suite.each(lambda rule: rule.named).astype(bool), margins.shape)
    learnt = ~named & (np.expm1(margins) < LARGEST_TOLERATED)
    return np.where(learnt, np.maximum(prior.tolerated, margins), prior.tolerated)


def judged(suite: Suite, today: Array, stored: Array) -> Outcome:
    """Look after look, until a test fails or nothing of it is open."""
    shape, prior = today.shape[:-1], known(suite, stored)
    verdicts = np.full(shape, INCONCLUSIVE)
    runs = np.zeros(shape[:2], dtype=np.int64)
    open_tests = np.ones(shape[:2], dtype=bool)
    looked_at = 0
    for count in LOOKS:
        if count > suite.most_runs:
            break
        verdict = look(suite, prior, today[..., :count], stored, looked_at)
        verdicts = np.where(open_tests[..., None], verdict, verdicts)
        runs[open_tests] = count
        open_tests &= (verdicts == INCONCLUSIVE).any(-1) & (verdicts != FAIL).all(-1)
        looked_at = count
    return Outcome(verdicts, runs)


@dataclass(frozen=True)
class Executed:
    """Of each suite and test the verdict of each execution, the last one repeated where none followed, and the runs."""

    verdicts: npt.NDArray[np.int64]
    runs: npt.NDArray[np.int64]


def executed(suite: Suite, today: Array, stored: Array, reruns: int) -> Executed:
    """Tests that are executed again while they are INCONCLUSIVE or FAIL; their runs are pooled as the package does."""
    tests = today.shape[0] * today.shape[1]
    prior = known(suite, stored).flat()
    fresh, earlier = today.reshape(tests, *today.shape[2:]), stored.reshape(tests, *stored.shape[2:])
    verdicts, runs = np.full((1 + reruns, tests), INCONCLUSIVE), np.zeros(tests, dtype=np.int64)
    for number in range(1 + reruns):
        last, had = verdicts[max(0, number - 1)].copy(), runs.copy()
        verdicts[number] = last
        again = np.isin(last, (INCONCLUSIVE, FAIL))
        for pooled, failed in {(int(n), bool(v == FAIL)) for n, v in zip(had[again], last[again], strict=True)}:
            chosen = np.flatnonzero(again & (had == pooled) & ((last == FAIL) == failed))
            result = execution(suite, prior.only(chosen), fresh[chosen], earlier[chosen], pooled=pooled, failed=failed,
                               number=number + 1)
            verdicts[number, chosen], runs[chosen] = result
    shape = today.shape[:2]
    return Executed(verdicts.reshape(-1, *shape), runs.reshape(shape))


def execution(
    suite: Suite, prior: Known, today: Array, stored: Array, *, pooled: int, failed: bool, number: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """One execution of tests that pool `pooled` runs of earlier executions. Returns verdicts and numbers of runs, by
    the rules of `compare`."""
    verdicts, runs = np.full(len(today), INCONCLUSIVE), np.zeros(len(today), dtype=np.int64)
    looked_at, count = (0 if failed else pooled), pooled + LOOKS[0]
    while True:
        open_tests = verdicts == INCONCLUSIVE
        verdict = look(suite, prior.only(open_tests), today[open_tests][..., :count], stored[open_tests], looked_at,
                       executions=number)
        worst = np.where(
            (verdict == FAIL).any(-1), FAIL, np.where((verdict == INCONCLUSIVE).any(-1), INCONCLUSIVE, PASS)
        )
        verdicts[open_tests], runs[open_tests] = worst, count
        looked_at = count
        further = next((later for later in LOOKS if later > count), None)
        if further is None or not (verdicts == INCONCLUSIVE).any():
            return verdicts, runs
        count = further


def look(
    suite: Suite, prior: Known, today: Array, stored: Array, looked_at: int, *, executions: int = 1
) -> npt.NDArray[np.int64]:
    """`decide` for arrays."""
    count, sessions = today.shape[-1], 1 if suite.noise.host else suite.sessions
    seeds = tuple(SEEDS[i % len(SEEDS)] for i in range(count))
    plan = layout(seeds, (SEEDS * (suite.sessions // sessions),) * sessions)
    values = np.concatenate([today, stored.reshape(*stored.shape[:-2], -1)], axis=-1)
    estimated = spread(plan, plan.run_squares(values), plan.session_squares(values),
                       prior, np.maximum)
    effect, se, df = plan.differ(values), np.sqrt(estimated.variance), estimated.df
    alpha = alpha_at(count, looked_at, primaries=suite.per_test, suite_primaries=suite.metrics)
    differences = today - stored.mean(-2)[..., list(seeds)]
    margin = prior.negligible
    gross = 0.0 if prior.learnt else np.minimum(GROSS_MARGINS * prior.tolerated, np.log(GROSS_FACTOR))
    worse = holm(stdtr(df, (margin - effect) / se), alpha) & carried(effect, differences, margin) & (effect >= gross)
    better = (
        holm(stdtr(df, (margin + effect) / se), alpha) & carried(-effect, -differences, margin) & (-effect >= gross)
    )
    confidence = at_each_look(1 - alpha_of_execution(1 - PASS_CONFIDENCE, executions), sessions)
    within = effect + stdtrit(df, confidence) * se < prior.tolerated
    return np.where(worse, FAIL, np.where(better, IMPROVED, np.where(within, PASS, INCONCLUSIVE)))


def holm(p: Array, alpha: float) -> npt.NDArray[np.bool_]:
    """Along the last axis."""
    order = np.argsort(p, axis=-1)
    levels = alpha / (p.shape[-1] - np.arange(p.shape[-1]))
    small = (np.take_along_axis(p, order, -1) <= levels) & (alpha > 0)
    falls = np.logical_and.accumulate(small, axis=-1)
    rejected = np.zeros_like(falls)
    np.put_along_axis(rejected, order, falls, -1)
    return rejected


def carried(effect: Array, differences: Array, margin: Array | float) -> npt.NDArray[np.bool_]:
    showing = (differences >= ((effect + margin) / 2)[..., None]).sum(-1)
    return np.asarray(showing >= differences.shape[-1] - differences.shape[-1] // 4)


def upper(count: int, of: int) -> float:
    """Clopper–Pearson's upper 95 % limit, one-sided."""
    return 1.0 if count >= of else float(beta.ppf(0.95, count + 1, of - count))


def _standard(df: float | None, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if df is None:
        return rng.standard_normal(shape)
    return rng.standard_t(df, shape) * ((df - 2) / df) ** 0.5


def ttft(suite: Suite) -> Suite:
    """The same suite of medians of the time to the first token."""
    return replace(suite, rules=(rule_of(Kind.TTFT),))


def percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def cells(suite: Suite) -> Iterator[tuple[str, Suite]]:
    """The grid under TPOT's prior and margins, then TTFT's own noise under TTFT's."""
    for run, session in GRID:
        yield f"TPOT {percent(run)} / {percent(session)}", replace(suite, noise=replace(suite.noise, run=run,
                                                                                       session=session))
    run, session = TTFT_NOISE
    yield f"TTFT {percent(run)} / {percent(session)}", ttft(replace(suite, noise=replace(suite.noise, run=run,
                                                                                       session=session)))


def a_a_rows(suite: Suite, suites: int, rng: np.random.Generator,
             label: Callable[[Suite], tuple[object, ...]]) -> Iterator[str]:
    for name, case in cells(suite):
        result = simulate(case, suites, rng)
        alarms = result.suites_with(FAIL)
        yield row(name, *label(case), f"{alarms} of {suites}", percent(upper(alarms, suites)),
                  result.suites_with(IMPROVED), percent(result.share(INCONCLUSIVE)), f"{result.runs.mean():.2f}")


_A_A = ("false alarms, suite runs", "upper 95 % limit", "suite runs with IMPROVED", "INCONCLUSIVE", "runs per test")


def alarms_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("A/A: nothing changed", "noise, run / session", "M", "stored sessions", *_A_A)
    for metrics in (9, 30):
        for sessions in (1, 2, 3, 5, 10):
            suite = Suite(Noise(0, 0), sessions=sessions, metrics=metrics)
            yield from a_a_rows(suite, suites, rng, lambda case: (case.metrics, case.sessions))


def reruns_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    """Every run of every execution is of one session; what is executed again is the test, not the suite."""
    yield from heading(f"A/A, M = 30, each test executed again up to {RERUNS} times while it is INCONCLUSIVE or FAIL",
                       "noise, run / session", "stored sessions", "red at first", "red in the end", "upper 95 % limit",
                       "red at any time", "tests INCONCLUSIVE at first", "in the end")
    for sessions in (1, 3, 10):
        for name, suite in cells(Suite(Noise(0, 0), sessions=sessions)):
            parts = [executed(suite, *draw(suite, min(CHUNK, suites - done), rng, MOST_RUNS), RERUNS).verdicts
                     for done in range(0, suites, CHUNK)]
            verdicts = np.concatenate(parts, axis=1)
            red = (verdicts == FAIL).any(-1)
            ends = int(red[-1].sum())
            unsure = (verdicts == INCONCLUSIVE).mean((1, 2))
            yield row(name, sessions, f"{red[0].sum()} of {suites}", f"{ends} of {suites}",
                      percent(upper(ends, suites)), f"{red.any(0).sum()} of {suites}", percent(unsure[0]),
                      percent(unsure[-1]))


def robust_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("A/A under noise that is not normal, M = 30", "noise, run / session", "what", "stored sessions",
                       *_A_A)
    strange = {"runs t(3)": Noise(0, 0, run_df=3), "5 % of runs +20 %": Noise(0, 0, spoilt=0.05),
               "runs and sessions t(3)": Noise(0, 0, run_df=3, session_df=3)}
    for name, noise in strange.items():
        for sessions in (1, 3, 5, 10):
            yield from a_a_rows(Suite(noise, sessions=sessions), suites, rng,
                                lambda case, name=name: (name, case.sessions))  # type: ignore[misc]


def hosts_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("A/A on another host than all stored sessions', M = 30; host sd 0.9 % (TPOT), 2.7 % (TTFT)",
                       "noise, run / session", "stored sessions", *_A_A)
    for sessions in (1, 3, 10):
        for name, case in cells(Suite(Noise(0, 0), sessions=sessions)):
            host = 0.027 if name.startswith("TTFT") else 0.009
            alone = replace(case, noise=replace(case.noise, session=case.noise.session / 3, host=host))
            result = simulate(alone, suites, rng)
            alarms = result.suites_with(FAIL)
            yield row(name, sessions, f"{alarms} of {suites}", percent(upper(alarms, suites)),
                      result.suites_with(IMPROVED), percent(result.share(INCONCLUSIVE)), f"{result.runs.mean():.2f}")


#: Default metrics of five tests, as a new user's suite has them.
DEFAULT_SUITE = Suite(Noise(0.003, 0.0), metrics=10, per_test=2, rules=(rule_of(Kind.STEP), TPOT))
#: Noise between sessions of that suite: name, sd, degrees of freedom of Student's t, share common to all metrics.
YOUNG_NOISE = (("0.6 %", 0.006, None, 0.0), ("2 %", 0.02, None, 0.0), ("5 %", 0.05, None, 0.0),
               ("1.3 %, t(3)", 0.013, 3, 0.0), ("2 %, t(3)", 0.02, 3, 0.0), ("2 %, common", 0.02, None, 1.0),
               ("5 %, common", 0.05, None, 1.0))
YOUNG_EFFECTS = (0.05, 0.10, 0.20, 4.0)


def young_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("Baselines with few sessions: five tests of median ITL and mean TPOT, run sd 0.3 %",
                       "session sd", "stored sessions", "red suites, nothing changed", "tests INCONCLUSIVE",
                       *(f"tests that FAIL at {1 + effect:g} ×" for effect in YOUNG_EFFECTS))
    for name, session, df, common in YOUNG_NOISE:
        for sessions in (1, 2, 3, 5, 10):
            noise = Noise(0.003, session, session_df=df, common=common)
            suite = replace(DEFAULT_SUITE, noise=noise, sessions=sessions)
            quiet = simulate(suite, suites, rng)
            slow = [simulate(replace(suite, effect=np.log1p(effect)), max(20, suites // 5), rng)
                    for effect in YOUNG_EFFECTS]
            yield row(name, sessions, share(quiet.suites_with(FAIL), suites), percent(quiet.tests_with(INCONCLUSIVE)),
                      *(percent(each.tests_with(FAIL)) for each in slow))


#: Primary metrics of eight tests on H200s: test, kind, sd of runs and of sessions, margins that the test names.
#: The sds are those of the stored sessions (docs/evidence/compared_metrics.md).
H200_METRICS = (
    ("serving", Kind.STEP, 0.0022, 0.0067, None), ("serving", Kind.TPOT, 0.0078, 0.0112, None),
    ("chunked prefill", Kind.TAIL, 0.0299, 0.0295, None), ("chunked prefill", Kind.STEP, 0.0033, 0.0069, None),
    ("prefix cache", Kind.TTFT, 0.0437, 0.0863, WIDE), ("prefix cache", Kind.STEP, 0.0018, 0.0034, None),
    ("offload", Kind.TTFT, 0.0317, 0.0817, WIDE), ("roofline", Kind.STEP, 0.0005, 0.0203, None),
    ("speculation", Kind.TPOT, 0.0262, 0.0622, Margins(0.1, 0.25)), ("TP 2", Kind.STEP, 0.0025, 0.0050, None),
    ("TP 4", Kind.TTFT, 0.0150, 0.0455, None),
)


def h200_suite(sessions: int, *, learns_margins: bool) -> Suite:
    rules = tuple(MetricRule(kind, _PRIORS[kind], (named or _MARGINS[kind]).on(Scale.LOG), named=named is not None)
                  for _, kind, _, _, named in H200_METRICS)
    noise = Noise(0, 0, metric_runs=tuple(run for _, _, run, _, _ in H200_METRICS),
                  metric_sessions=tuple(session for _, _, _, session, _ in H200_METRICS))
    return Suite(noise, sessions, len(rules), 1, rules=rules, learns_margins=learns_margins)


def h200_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    """Eight tests; the decode step of five of them is compared with the default margins."""
    tests = list(dict.fromkeys(test for test, *_ in H200_METRICS))
    member = np.array([[each == test for each, *_ in H200_METRICS] for test in tests])
    steps = [i for i, (_, kind, _, _, _) in enumerate(H200_METRICS) if kind is Kind.STEP]
    yield from heading("Noise of the stored H200 sessions: eleven metrics of eight tests", "margins", "stored sessions",
                       "red suites, nothing changed", "tests decided", "least decided test", "runs per metric",
                       "decode steps that FAIL at +5.8 %", "at +20 %")
    for learns_margins in (False, True):
        for sessions in (1, 2, 3, 5, 10):
            suite = h200_suite(sessions, learns_margins=learns_margins)
            quiet = simulate(suite, suites, rng)
            undecided = ((quiet.verdicts[:, None, :, 0] == INCONCLUSIVE) & member).any(-1).mean(0)
            slow = [simulate(replace(suite, effect=np.log1p(effect)), max(20, suites // 5), rng).verdicts[:, steps]
                    for effect in (0.058, 0.2)]
            yield row("learnt" if learns_margins else "default", sessions, share(quiet.suites_with(FAIL), suites),
                      percent(1 - undecided.mean()),
                      f"{tests[int(undecided.argmax())]}: {percent(1 - undecided.max())}",
                      f"{quiet.runs.mean():.2f}", *(percent((verdicts == FAIL).mean()) for verdicts in slow))


def trust_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    """False alarms beside INCONCLUSIVE, by the rules that a project would use otherwise."""
    yield from heading("Nothing changed: five tests of median ITL and mean TPOT, three runs first", "run / session sd",
                       "stored sessions", "red suites", "tests INCONCLUSIVE", "with learnt margins",
                       "red suites: mean of 3 runs over all stored +5 %", "pytest-benchmark mean:5%, last session")
    for run, session in ((0.01, 0.005), (0.035, 0.02)):
        for sessions in (1, 3, 10):
            suite = replace(DEFAULT_SUITE, noise=Noise(run, session), sessions=sessions)
            outcomes, alarms = [], []
            for done in range(0, suites, CHUNK):
                today, stored = draw(suite, min(CHUNK, suites - done), rng)
                outcomes.append([judged(each, today, stored) for each in (suite, replace(suite, learns_margins=True))])
                alarms.append([alarm.any((1, 2)) for alarm in thresholds(today[..., :3], stored)])
            plain, learnt = (joined(parts) for parts in zip(*outcomes, strict=True))
            counts = [int(np.concatenate(each).sum()) for each in zip(*alarms, strict=True)]
            yield row(f"{percent(run)} / {percent(session)}", sessions, share(learnt.suites_with(FAIL), suites),
                      percent(plain.tests_with(INCONCLUSIVE)), percent(learnt.tests_with(INCONCLUSIVE)),
                      *(share(count, suites) for count in counts))


def slower_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("Power of the first look against few sessions, tests of one metric, noise of the prior",
                       "metric", "times slower", "M", "stored sessions", "FAIL", "INCONCLUSIVE")
    for name, calm in _calm():
        for times in (1.2, 1.5, 2, 3, 5):
            for metrics in (2, 30):
                for sessions in (1, 2):
                    suite = replace(calm, metrics=metrics, per_test=1, sessions=sessions, effect=np.log(times))
                    result = simulate(suite, max(20, suites // metrics), rng)
                    yield row(name, f"{times:g} ×", metrics, sessions, percent(result.share(FAIL)),
                              percent(result.share(INCONCLUSIVE)))


def endpoints_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    """A suite of two metrics, three runs and no more: an endpoint whose cache is not emptied."""
    yield from heading("An endpoint, M = 2, three runs, by a CPU's rows and by those of unknown hardware", "metric",
                       "sd of runs / sessions", "rows", "stored sessions", "false alarms, suite runs",
                       "upper 95 % limit", "FAIL at +20 %", "INCONCLUSIVE at +20 %")
    noises = {"ttft_p50": ((0.005, 0.005), (0.02, 0.027), (0.1, 0.1)),
              "tpot_mean": ((0.005, 0.005), (0.02, 0.03), (0.08, 0.16))}
    for name, pairs in noises.items():
        metric = find(name)
        for run, session in pairs:
            for hardware in ("cpu", UNKNOWN_HARDWARE):
                for sessions in (1, 3, 5, 10):
                    margins = margins_for(metric, hardware).on(Scale.LOG)
                    rule = MetricRule(kind_of(metric), prior_for(metric, hardware), margins)
                    suite = Suite(Noise(run, session), sessions, 2, 2, most_runs=LOOKS[0], rules=(rule,))
                    alarms = simulate(suite, suites, rng).suites_with(FAIL)
                    slow = simulate(replace(suite, effect=np.log1p(0.2)), max(20, suites // 4), rng)
                    yield row(name, f"{percent(run)} / {percent(session)}", hardware, sessions, f"{alarms} of {suites}",
                              percent(upper(alarms, suites)), percent(slow.share(FAIL)),
                              percent(slow.share(INCONCLUSIVE)))


def _calm() -> Iterator[tuple[str, Suite]]:
    """Suites of one look whose noise is the prior's."""
    for name, kind in (("TPOT", Kind.TPOT), ("TTFT", Kind.TTFT)):
        prior = _PRIORS[kind]
        yield name, Suite(Noise(prior.run_sd, prior.session_sd), most_runs=LOOKS[0], rules=(rule_of(kind),))


def power_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("Power of one metric, tests of one metric", "noise, run / session", "effect", "M",
                       "stored sessions", "most runs", "FAIL", "PASS", "INCONCLUSIVE", "runs per test")
    tpot = ((0.005, 0.003, 0.05), (0.01, 0.005, 0.05), (0.01, 0.005, 0.10), (0.02, 0.01, 0.10), (0.035, 0.02, 0.20))
    for run, session, effect in tpot:
        for metrics in (10, 30):
            for sessions, most in ((1, 8), (3, 5), (5, 5), (10, 5), (10, 8)):
                suite = Suite(Noise(run, session), sessions, metrics, 1, np.log1p(effect), most)
                yield _power_row("TPOT", suite, effect, max(20, suites // metrics), rng)
    for effect in (0.15, 0.30):
        for sessions, most in ((1, 8), (3, 8), (5, 8), (10, 5), (10, 8)):
            suite = ttft(Suite(Noise(*TTFT_NOISE), sessions, 10, 1, np.log1p(effect), most))
            yield _power_row("TTFT", suite, effect, max(20, suites // 10), rng)


def _power_row(name: str, suite: Suite, effect: float, suites: int, rng: np.random.Generator) -> str:
    result = simulate(suite, suites, rng)
    return row(f"{name} {percent(suite.noise.run)} / {percent(suite.noise.session)}", f"+{percent(effect)}",
               suite.metrics, suite.sessions, suite.most_runs, percent(result.share(FAIL)), percent(result.share(PASS)),
               percent(result.share(INCONCLUSIVE)), f"{result.runs.mean():.2f}")


def margins_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("Margins for the median TTFT (run 2 %, session 2.7 %), M = 30, tests of one metric", "margins",
                       "stored sessions", "A/A INCONCLUSIVE", "A/A suite runs with FAIL", "FAIL at +15 %",
                       "FAIL at +30 %")
    for margins in (Margins(0.02, 0.05), Margins(0.03, 0.10), Margins(0.03, 0.15), Margins(0.05, 0.15)):
        for sessions in (1, 3, 5, 10):
            rule = replace(rule_of(Kind.TTFT), margins=margins.on(Scale.LOG))
            suite = Suite(Noise(*TTFT_NOISE), sessions, per_test=1, rules=(rule,))
            quiet = simulate(suite, suites // 5, rng)
            loud = [simulate(replace(suite, effect=np.log1p(effect)), max(20, suites // 50), rng).share(FAIL)
                    for effect in (0.15, 0.30)]
            yield row(f"{percent(margins.negligible)} / {percent(margins.tolerated)}", sessions,
                      percent(quiet.share(INCONCLUSIVE)), f"{quiet.suites_with(FAIL)} of {suites // 5}",
                      *map(percent, loud))


def others_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    """Requests: 100 to a run, log-normal with an sd of 30 % around their run's level."""
    yield from heading("The same data judged by others, M = 30, ten stored sessions: alarms", "noise, run / session",
                       "changed", "these verdicts", "mean of 3 runs over all stored +5 %",
                       "pytest-benchmark mean:5 % (last session)", "Mann–Whitney on pooled requests, p < 1 %/M",
                       "Mann–Whitney, p < 5 %")
    for run, session in (*GRID, TTFT_NOISE):
        for effect in (0.0, 0.05, 0.10):
            suite = Suite(Noise(run, session), effect=np.log1p(effect))
            if (run, session) == TTFT_NOISE:
                suite = ttft(suite)
            ours, theirs = [], []
            for done in range(0, suites, CHUNK):
                today, stored = draw(suite, min(CHUNK, suites - done), rng)
                ours.append((judged(suite, today, stored).verdicts == FAIL).reshape(len(today), -1))
                theirs.append([alarm.reshape(len(today), -1) for alarm in others(suite, today[..., :3], stored, rng)])
            alarms = [np.concatenate(ours), *map(np.concatenate, zip(*theirs, strict=True))]
            shares = [alarm.any(-1).mean() if not effect else alarm.mean() for alarm in alarms]
            unit = "suite runs" if not effect else "metrics"
            yield row(f"{percent(run)} / {percent(session)}", f"+{percent(effect)}" if effect else "nothing",
                      *(f"{percent(share)} of {unit}" for share in shares))


def others(suite: Suite, today: Array, stored: Array, rng: np.random.Generator) -> list[npt.NDArray[np.bool_]]:
    """Whether each of the other rules alarms, of each metric; all see today's first three runs."""
    rank_p = mann_whitney(requests(today, rng), requests(stored[..., -1, :], rng))
    return [*thresholds(today, stored), rank_p < SUITE_ALPHA / suite.metrics, rank_p < 0.05]


def thresholds(today: Array, stored: Array) -> list[npt.NDArray[np.bool_]]:
    """+5 % over the mean of all stored runs, and over that of the last session."""
    mean = np.exp(today).mean(-1)
    return [mean > 1.05 * np.exp(stored).mean((-1, -2)), mean > 1.05 * np.exp(stored[..., -1, :]).mean(-1)]


def requests(runs: Array, rng: np.random.Generator) -> Array:
    """100 requests of each run, pooled; float32 halves the memory."""
    each = runs[..., None] + 0.3 * rng.standard_normal((*runs.shape, 100), dtype=np.float32)
    return each.astype(np.float32).reshape(*runs.shape[:-1], -1)


def mann_whitney(ours: Array, theirs: Array) -> Array:
    """One-sided p of "not larger", normal approximation without ties."""
    n, m = ours.shape[-1], theirs.shape[-1]
    u = rankdata(np.concatenate([ours, theirs], -1), axis=-1)[..., :n].sum(-1) - n * (n + 1) / 2
    return np.asarray(stdtr(1e6, -(u - n * m / 2) / np.sqrt(n * m * (n + m + 1) / 12)))


TABLES = {
    "young": young_table, "h200": h200_table, "alarms": alarms_table, "reruns": reruns_table, "slower": slower_table,
    "endpoints": endpoints_table, "power": power_table, "margins": margins_table, "robust": robust_table,
    "hosts": hosts_table, "others": others_table, "trust": trust_table,
}  # fmt: skip
