"""How often baseline verdicts are wrong, on noise whose truth is known. Prints Markdown tables.

    python scripts/simulate_verdicts.py alarms reruns gross steps slower power margins --suites 10000

    python scripts/simulate_verdicts.py robust hosts others --suites 10000

    python scripts/simulate_verdicts.py means --suites 3000

    python scripts/simulate_verdicts.py endpoints drift starts suites --suites 20000

A suite run is M primary metrics, three to a test, each test against D stored sessions of three runs (seeds 0, 1, 2),
with looks at 3, 5 and 8 runs of today's. The variances, priors, margins, looks and α are the package's own; only the
decisions are written once more, for arrays: tests/unit/stats/test_simulated_verdicts.py holds them against `decide`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import simulate_claims
import simulate_means
import simulate_tunings
from scipy.special import stdtr, stdtrit
from scipy.stats import beta, rankdata
from simulate_claims import heading, row

from pytest_llmperf.calibration.page import share
from pytest_llmperf.calibration.slow_servers import CASES, RUNS, SlowServerCase, simulated_run, truth, verdicts
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.judging.claim_judge import judge_slos
from pytest_llmperf.judging.reference_comparison import (
    PAIRS_OF_START,
    REFERENCE_LOOKS,
    ReferenceTerms,
    judge_against_reference,
)
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.run import CountedBy
from pytest_llmperf.model.engine import UNKNOWN_HARDWARE
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import worst
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.slo.model import Slo
from pytest_llmperf.slo.parse import parse_slo
from pytest_llmperf.stats.decision import PASS_CONFIDENCE, at_each_look
from pytest_llmperf.stats.layout import layout
from pytest_llmperf.stats.looks import LOOKS, SUITE_ALPHA, alpha_at, alpha_of_execution, only_gross
from pytest_llmperf.stats.prior import Margins, Prior, Scale
from pytest_llmperf.stats.priors import _MARGINS, _PRIORS, Kind, margins_for, prior_for
from pytest_llmperf.stats.spread import spread

Array = npt.NDArray[np.float64]
PASS, IMPROVED, INCONCLUSIVE, FAIL = range(4)
SEEDS = (0, 1, 2)
CHUNK = 500
RERUNS = 3
MOST_RUNS = LOOKS[-1] + RERUNS * LOOKS[0]
#: Run and session sd: the grid that every A/A table goes through.
TPOT_PRIOR = _PRIORS[Kind.TPOT]
TPOT_MARGINS = _MARGINS[Kind.TPOT].on(Scale.LOG)
#: How many times the limit the truth is, where a measurement may end early.
UNTIL_TIMES = (1.0, 0.8, 0.5, 1.5)
GRID = ((0.005, 0.003), (0.01, 0.005), (0.02, 0.01), (0.035, 0.02))
TTFT_NOISE = (0.02, 0.027)
#: The decode step in a comparison with a reference build, and how many metrics its suite judges.
STEP, SUITE_METRICS = "itl_p50", 15
#: Of the decode step: as stored, on an emulator, and of hosts that differ by more than the stored ones.
STEP_NOISE = ((0.0025, 0.006), (0.005, 0.003), (0.005, 0.006), (0.0025, 0.01), (0.0025, 0.015), (0.0025, 0.02))


@dataclass(frozen=True)
class Noise:
    """Random changes of a metric's logarithm in A/A sessions.

    Args:
        run, session: standard deviations between runs and between sessions.
        run_df, session_df: degrees of freedom of a Student's t distribution with this sd; None for a normal
            distribution.
        spoilt: share of runs that are 20 % slower in every metric.
        host: sd between hosts; all stored sessions are from one host, and the new session is from a second host.
    """

    run: float
    session: float
    run_df: float | None = None
    session_df: float | None = None
    spoilt: float = 0.0
    host: float = 0.0


@dataclass(frozen=True)
class Suite:
    """M metrics, `per_test` to a test, against D stored sessions; `effect` on the logarithm of all of them."""

    noise: Noise
    sessions: int = 10
    metrics: int = 30
    per_test: int = 3
    effect: float = 0.0
    most_runs: int = LOOKS[-1]
    prior: Prior = TPOT_PRIOR
    margins: Margins = TPOT_MARGINS


@dataclass(frozen=True)
class Outcome:
    """Of each suite, test and metric its verdict, and of each suite and test the runs it took."""

    verdicts: npt.NDArray[np.int64]
    runs: npt.NDArray[np.int64]

    def suites_with(self, verdict: int) -> int:
        return int((self.verdicts == verdict).any((1, 2)).sum())

    def share(self, verdict: int) -> float:
        return float((self.verdicts == verdict).mean())


def simulate(suite: Suite, suites: int, rng: np.random.Generator) -> Outcome:
    """So many independent suite runs, each with a baseline of its own."""
    parts = [judged(suite, *draw(suite, min(CHUNK, suites - done), rng)) for done in range(0, suites, CHUNK)]
    return Outcome(np.concatenate([part.verdicts for part in parts]), np.concatenate([part.runs for part in parts]))


def draw(
    suite: Suite, suites: int, rng: np.random.Generator, today: int = LOOKS[-1]
) -> tuple[Array, Array]:
    """Today's runs (suites × tests × metrics × 8) and the stored ones (… × sessions × 3), as logarithms."""
    noise, shape = suite.noise, (suites, suite.metrics // suite.per_test, suite.per_test)

    def runs(*more: int) -> Array:
        spoilt = rng.random((*shape[:2], 1, *more)) < noise.spoilt
        return noise.run * _standard(noise.run_df, (*shape, *more), rng) + np.log(1.2) * spoilt

    levels = noise.session * _standard(noise.session_df, (*shape, suite.sessions + 1), rng)
    other_host = noise.host * 2**0.5 * rng.standard_normal((*shape, 1))
    return (runs(today) + levels[..., :1] + other_host + suite.effect,
            runs(suite.sessions, len(SEEDS)) + levels[..., 1:, None])


def judged(suite: Suite, today: Array, stored: Array) -> Outcome:
    """Look after look, until a test fails or nothing of it is open."""
    shape = today.shape[:-1]
    verdicts = np.full(shape, INCONCLUSIVE)
    runs = np.zeros(shape[:2], dtype=np.int64)
    open_tests = np.ones(shape[:2], dtype=bool)
    looked_at = 0
    for count in LOOKS:
        if count > suite.most_runs:
            break
        verdict = look(suite, today[..., :count], stored, looked_at)
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
    fresh, earlier = today.reshape(tests, *today.shape[2:]), stored.reshape(tests, *stored.shape[2:])
    verdicts, runs = np.full((1 + reruns, tests), INCONCLUSIVE), np.zeros(tests, dtype=np.int64)
    for number in range(1 + reruns):
        last, had = verdicts[max(0, number - 1)].copy(), runs.copy()
        verdicts[number] = last
        again = np.isin(last, (INCONCLUSIVE, FAIL))
        for pooled, failed in {(int(n), bool(v == FAIL)) for n, v in zip(had[again], last[again], strict=True)}:
            chosen = np.flatnonzero(again & (had == pooled) & ((last == FAIL) == failed))
            result = execution(suite, fresh[chosen], earlier[chosen], pooled=pooled, failed=failed, number=number + 1)
            verdicts[number, chosen], runs[chosen] = result
    shape = today.shape[:2]
    return Executed(verdicts.reshape(-1, *shape), runs.reshape(shape))


def execution(
    suite: Suite, today: Array, stored: Array, *, pooled: int, failed: bool, number: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """One execution of tests that pool `pooled` runs of earlier executions. Returns verdicts and numbers of runs, by
    the rules of `compare`."""
    verdicts, runs = np.full(len(today), INCONCLUSIVE), np.zeros(len(today), dtype=np.int64)
    looked_at, count = (0 if failed else pooled), pooled + LOOKS[0]
    while True:
        open_tests = verdicts == INCONCLUSIVE
        verdict = look(suite, today[open_tests][..., :count], stored[open_tests], looked_at, number)
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
    suite: Suite, today: Array, stored: Array, looked_at: int, executions: int = 1
) -> npt.NDArray[np.int64]:
    """`decide` for arrays."""
    count, sessions = today.shape[-1], 1 if suite.noise.host else suite.sessions
    seeds = tuple(SEEDS[i % len(SEEDS)] for i in range(count))
    plan = layout(seeds, (SEEDS * (suite.sessions // sessions),) * sessions)
    values = np.concatenate([today, stored.reshape(*stored.shape[:-2], -1)], axis=-1)
    estimated = spread(plan, plan.run_squares(values), plan.session_squares(values), suite.prior, np.maximum)
    effect, se, df = plan.differ(values), np.sqrt(estimated.variance), estimated.df
    alpha = alpha_at(count, looked_at, sessions=sessions, primaries=suite.per_test, suite_primaries=suite.metrics)
    differences = today - stored.mean(-2)[..., list(seeds)]
    margin = suite.margins.negligible
    gross = only_gross(count, sessions)
    shown_df, shown_se = (estimated.gross_df, np.sqrt(estimated.gross_variance)) if gross else (df, se)
    worse = holm(stdtr(shown_df, (margin - effect) / shown_se), alpha) & carried(effect, differences, margin)
    better = holm(stdtr(shown_df, (margin + effect) / shown_se), alpha) & carried(-effect, -differences, margin)
    confidence = at_each_look(1 - alpha_of_execution(1 - PASS_CONFIDENCE, executions), sessions)
    within = effect + stdtrit(df, confidence) * se < suite.margins.tolerated
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


def carried(effect: Array, differences: Array, margin: float) -> npt.NDArray[np.bool_]:
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
    return replace(suite, prior=_PRIORS[Kind.TTFT], margins=_MARGINS[Kind.TTFT].on(Scale.LOG))


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


def gross_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    """Against fewer than three sessions only a gross regression fails at the first look."""
    yield from heading("A/A against few sessions, M = 30, noise as a multiple of the prior's sd", "metric",
                       "sd of runs", "sd of sessions", "sessions", "stored sessions", "false alarms at the first look",
                       "upper 95 % limit", "at all three looks")
    for name, calm in _calm():
        for of_runs, of_sessions, df in ((1, 1, None), (1, 3, 3), (1, 5, None), (1, 5, 3), (1, 8, None), (6, 6, None)):
            for sessions in (1, 2):
                noise = Noise(of_runs * calm.noise.run, of_sessions * calm.noise.session, session_df=df)
                suite = replace(calm, noise=noise, sessions=sessions)
                alarms, in_all = (simulate(replace(suite, most_runs=most), suites, rng).suites_with(FAIL)
                                  for most in (LOOKS[0], LOOKS[-1]))
                yield row(name, f"{of_runs} ×", f"{of_sessions} ×", f"t({df})" if df else "normal", sessions,
                          f"{alarms} of {suites}", percent(upper(alarms, suites)), f"{in_all} of {suites}")


def steps_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    """The median decode step by the prior and margins of mean TPOT, as before, and by its own."""
    yield from heading("A/A of the decode step, M = 30, noise of H200 hosts", "sd of runs / sessions",
                       "stored sessions", "false alarms: rule of mean TPOT", "rule of the decode step",
                       "upper 95 % limit", "INCONCLUSIVE: rule of mean TPOT", "rule of the decode step",
                       "FAIL at +5.8 %: rule of mean TPOT", "rule of the decode step")
    kinds = (Kind.TPOT, Kind.STEP)
    for run, session in STEP_NOISE:
        for sessions in (1, 3, 5, 10):
            rules = [Suite(Noise(run, session), sessions, prior=_PRIORS[kind], margins=_MARGINS[kind].on(Scale.LOG))
                     for kind in kinds]
            quiet = [simulate(suite, suites, rng) for suite in rules]
            slow = [simulate(replace(suite, effect=np.log1p(0.058)), max(20, suites // 10), rng) for suite in rules]
            alarms = [result.suites_with(FAIL) for result in quiet]
            yield row(f"{percent(run)} / {percent(session)}", sessions, *(f"{count} of {suites}" for count in alarms),
                      percent(upper(alarms[1], suites)), *(percent(outcome.share(INCONCLUSIVE)) for outcome in quiet),
                      *(percent(outcome.share(FAIL)) for outcome in slow))


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
                    suite = Suite(Noise(run, session), sessions, 2, 2, most_runs=LOOKS[0], margins=margins,
                                  prior=prior_for(metric, hardware))
                    alarms = simulate(suite, suites, rng).suites_with(FAIL)
                    slow = simulate(replace(suite, effect=np.log1p(0.2)), max(20, suites // 4), rng)
                    yield row(name, f"{percent(run)} / {percent(session)}", hardware, sessions, f"{alarms} of {suites}",
                              percent(upper(alarms, suites)), percent(slow.share(FAIL)),
                              percent(slow.share(INCONCLUSIVE)))


def _calm() -> Iterator[tuple[str, Suite]]:
    """Suites of one look whose noise is the prior's."""
    for name, kind in (("TPOT", Kind.TPOT), ("TTFT", Kind.TTFT)):
        prior = _PRIORS[kind]
        yield name, Suite(Noise(prior.run_sd, prior.session_sd), most_runs=LOOKS[0], prior=prior,
                          margins=_MARGINS[kind].on(Scale.LOG))


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
            suite = replace(ttft(Suite(Noise(*TTFT_NOISE), sessions, per_test=1)), margins=margins.on(Scale.LOG))
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
    mean, last = np.exp(today).mean(-1), stored[..., -1, :]
    rank_p = mann_whitney(requests(today, rng), requests(last, rng))
    return [mean > 1.05 * np.exp(stored).mean((-1, -2)), mean > 1.05 * np.exp(last).mean(-1),
            rank_p < SUITE_ALPHA / suite.metrics, rank_p < 0.05]


def requests(runs: Array, rng: np.random.Generator) -> Array:
    """100 requests of each run, pooled; float32 halves the memory."""
    each = runs[..., None] + 0.3 * rng.standard_normal((*runs.shape, 100), dtype=np.float32)
    return each.astype(np.float32).reshape(*runs.shape[:-1], -1)


def mann_whitney(ours: Array, theirs: Array) -> Array:
    """One-sided p of "not larger", normal approximation without ties."""
    n, m = ours.shape[-1], theirs.shape[-1]
    u = rankdata(np.concatenate([ours, theirs], -1), axis=-1)[..., :n].sum(-1) - n * (n + 1) / 2
    return np.asarray(stdtr(1e6, -(u - n * m / 2) / np.sqrt(n * m * (n + m + 1) / 12)))


def slow_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """SLOs on servers whose requests are not independent, at the exact limit and where the truth is 10 % beyond it."""
    seed = int(rng.integers(2**31))
    for runs in (3, 1):
        yield from heading(f"SLOs on servers that change slowly, {runs} run(s), {trials} trials", "server", "metric",
                           "requests a run", "run ÷ period", "false PASS at the limit", "false PASS 10 % beyond",
                           "false FAIL at the limit", "PASS where the limit is twice the truth")
        for case in CASES:
            for requests in case.requests:
                exact, beyond, far = verdicts(case, requests, runs, trials, seed=seed)
                counts = (exact["PASS"], beyond["PASS"], exact["FAIL"], far["PASS"])
                yield row(case.server, case.metric, requests, f"{case.periods(requests):.3g}",
                          *(share(count, trials) for count in counts))


def until_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """Compare `perf.measure(until=…)` with a fixed measurement of three runs: false verdicts, decisions and runs."""
    yield from heading(f"SLOs that may end a measurement after one run, {trials} trials", "server", "metric",
                       "requests a run", "truth ÷ limit", "PASS: until / three runs", "FAIL: until / three runs",
                       "runs: until, mean")
    for case in (case for case in CASES if case.server == "independent" and case.metric != "itl_p99"):
        exact = truth(case.process, case.metric, rng)
        for requests, times in ((requests, times) for requests in case.requests for times in UNTIL_TIMES):
            slo = parse_slo(f"{case.metric} <= {exact / times:.9f}ms")
            verdicts_ = [judged_until(case, requests, slo, rng) for _ in range(trials)]
            shares = [" / ".join(share(sum(trial[place] == verdict for trial in verdicts_), trials) for place in (0, 1))
                      for verdict in (Verdict.PASS, Verdict.FAIL)]
            mean_runs = np.mean([count for *_, count in verdicts_])
            yield row(case.server, case.metric, requests, f"{times:g}", *shares, f"{mean_runs:.2f}")


def judged_until(
    case: SlowServerCase, requests: int, slo: Slo, rng: np.random.Generator
) -> tuple[Verdict, Verdict, int]:
    """The verdict of a measurement that may end after each run, of three runs at once, and the runs of the first."""
    metrics = [simulated_run(case, requests, rng) for _ in range(RUNS)]
    runs = [Run(seed, 1, run.records, cache_reset=True) for seed, run in enumerate(metrics)]

    def judged(count: int, looks: int) -> Verdict:
        measurement = Measurement("simulated", case.server, {}, tuple(runs[:count]), tuple(metrics[:count]))
        return worst(judge_slos(replace(measurement, looks=looks), [slo], Settings()))

    for count in range(1, RUNS + 1):
        if (verdict := judged(count, RUNS)) is not Verdict.INCONCLUSIVE:
            break
    return verdict, judged(RUNS, 1), count


def reference_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """A candidate against its reference build: one metric of a suite of 15, every look of the rule."""
    yield from heading("Candidate against reference", "start sd", "pair sd", "true change", "FAIL", "INCONCLUSIVE",
                       "PASS", "IMPROVED", "mean pairs")
    for start_sd, pair_sd in ((0.0018, 0.003), (0.0025, 0.005), (0.005, 0.005)):
        for change in (0.0, 0.01, 0.02):
            verdicts_ = [judged_reference(change, start_sd, pair_sd, rng) for _ in range(trials)]
            shares = [share(sum(verdict is wanted for verdict, _ in verdicts_), trials)
                      for wanted in (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.IMPROVED)]
            mean_pairs = np.mean([pairs for _, pairs in verdicts_])
            yield row(percent(start_sd), percent(pair_sd), percent(change), *shares, f"{mean_pairs:.1f}")


def judged_reference(
    change: float, start_sd: float, pair_sd: float, rng: np.random.Generator
) -> tuple[Verdict, int]:
    """The verdict on median ITL, and how many pairs it took.

    Args:
        change: true change of the candidate, as a share.
        start_sd: of one server start, on the logarithm.
        pair_sd: of one pair's difference.
    """
    pairs = max(REFERENCE_LOOKS)
    starts = rng.normal(0, start_sd * 2**0.5, -(-pairs // PAIRS_OF_START))
    differences = np.log1p(change) + np.repeat(starts, PAIRS_OF_START)[:pairs] + rng.normal(0, pair_sd, pairs)
    terms, looked_at = ReferenceTerms((STEP,), "h200", SUITE_METRICS, {}), 0
    for look in REFERENCE_LOOKS:
        candidate, reference = (
            simulated_side([5.0 * float(np.exp(factor * difference)) for difference in differences[:look]], side)
            for side, factor in enumerate((1, 0))
        )
        (result,) = judge_against_reference(candidate, reference, terms, looked_at)
        if result.verdict is not Verdict.INCONCLUSIVE:
            break
        looked_at = look
    return result.verdict, look


def simulated_side(values: list[float], side: int) -> Measurement:
    """Runs of one side in turn with the other: A B, B A, A B."""
    runs = tuple(
        replace(Run.of_values(seed, 2 * (seed // PAIRS_OF_START) + side, {STEP: value}),
                block=2 * seed + (side + seed) % 2)
        for seed, value in enumerate(values)
    )
    metrics = tuple(replace(run.metrics, counted_by=CountedBy.CHUNKS) for run in runs)
    return Measurement("simulated", "simulated", {}, runs, metrics)


TABLES = {
    "until": until_table, "slow": slow_table,
    "alarms": alarms_table, "reruns": reruns_table, "gross": gross_table, "steps": steps_table, "slower": slower_table,
    "endpoints": endpoints_table, "power": power_table, "margins": margins_table, "robust": robust_table,
    "hosts": hosts_table, "others": others_table, "reference": reference_table, **simulate_claims.TABLES,
    **simulate_means.TABLES, **simulate_tunings.TABLES,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--suites", type=int, default=1000, help="suite runs per row")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in options.tables:
        for line in TABLES[name](options.suites, np.random.default_rng(options.seed)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
