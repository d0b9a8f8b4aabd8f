"""The simulation behind the published error rates: its arrays decide as the package does, and a small run of it.

The full tables: python scripts/simulate_verdicts.py --suites 10000.
"""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.stats.decision import LOOKS, PASS_CONFIDENCE, MetricComparison, alpha_at, alpha_of_execution, decide
from pytest_llmperf.stats.priors import SuiteSpread, session_levels
from pytest_llmperf.stats.shift import sessions_by_host, shift

SCRIPT = Path(__file__).parents[3] / "scripts" / "simulate_baselines.py"


@pytest.fixture(scope="module")
def made():
    spec = importlib.util.spec_from_file_location("simulate_baselines", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)  # it imports the simulation of claims
        spec.loader.exec_module(module)
    return module


def learnt(suite, stored):
    """The prior of each metric of a suite run, computed by the package: tests × metrics."""
    rules = [suite.rules[i % len(suite.rules)] for i in range(suite.metrics)]
    sessions = stored.reshape(suite.metrics, *stored.shape[-2:]).tolist()
    hosts = ["a"] * suite.sessions
    spread = SuiteSpread.of(
        (rule.kind, rule.prior, session_levels(sessions_by_host([list(enumerate(runs)) for runs in of_metric], hosts,
                                                                "b" if suite.noise.host else "a")))
        for rule, of_metric in zip(rules, sessions, strict=True)
    )
    priors = [spread.learnt(rule.prior, rule.kind) for rule in rules]
    return [priors[i:i + suite.per_test] for i in range(0, suite.metrics, suite.per_test)]


def by_the_package(suite, priors, today, stored):
    """All looks of one test, computed by the package. Returns the verdicts and the number of runs."""
    seeds = [i % 3 for i in range(8)]
    hosts = ["a"] * suite.sessions
    looked_at = 0
    for count in LOOKS:
        compared = []
        for prior, fresh, sessions in zip(priors, today, stored, strict=True):
            pairs = [list(zip(seeds, session, strict=False)) for session in sessions.tolist()]
            by_host = sessions_by_host(pairs, hosts, "b" if suite.noise.host else "a")
            estimate = shift(list(zip(seeds, fresh[:count].tolist(), strict=False)), by_host, prior)
            compared.append(MetricComparison(estimate, suite.rules[len(compared) % len(suite.rules)].margins))
        alpha = alpha_at(count, looked_at, primaries=suite.per_test, suite_primaries=suite.metrics)
        verdicts = decide(compared, alpha)
        if Verdict.FAIL in verdicts or Verdict.INCONCLUSIVE not in verdicts:
            break
        looked_at = count
    return verdicts, count


def reruns_by_the_package(suite, priors, today, stored, reruns):
    """The verdict of one test after each execution, its runs pooled as `session.sequential_comparison.compare` pools
    them."""
    verdicts, pooled = [], 0
    for execution in range(1, 2 + reruns):
        looked_at, count = (0 if verdicts[-1:] == [Verdict.FAIL] else pooled), pooled + LOOKS[0]
        while True:
            seeds = [i % 3 for i in range(count)]
            compared = [
                MetricComparison(shift(list(zip(seeds, fresh.tolist(), strict=False)),
                                       [list(zip(range(3), session, strict=True)) for session in sessions.tolist()],
                                       prior), suite.rules[0].margins)
                for prior, fresh, sessions in zip(priors, today, stored, strict=True)
            ]
            alpha = alpha_at(count, looked_at, primaries=suite.per_test, suite_primaries=suite.metrics)
            confidence = 1 - alpha_of_execution(1 - PASS_CONFIDENCE, execution)
            decided = decide(compared, alpha, confidence)
            worst = max(decided, key=lambda verdict: verdict.severity)
            looked_at = count
            further = next((look for look in LOOKS if look > count), None)
            if worst is not Verdict.INCONCLUSIVE or further is None:
                break
            count = further
        verdicts.append(worst)
        pooled = count
        if worst not in (Verdict.INCONCLUSIVE, Verdict.FAIL):
            break
    return verdicts, pooled


@pytest.mark.parametrize("effect", [0.0, 0.04, 0.08])
@pytest.mark.parametrize("sessions", [1, 3])
def test_simulated_reruns_pool_runs_like_package(made, sessions, effect):
    suite = made.Suite(made.Noise(0.02, 0.01), sessions, metrics=6, effect=effect)
    today, stored = made.draw(suite, 6, np.random.default_rng(4), made.MOST_RUNS)
    outcomes = made.executed(suite, today, stored, made.RERUNS)
    names = {made.PASS: {Verdict.PASS, Verdict.IMPROVED}, made.INCONCLUSIVE: {Verdict.INCONCLUSIVE},
             made.FAIL: {Verdict.FAIL}}
    again = 0
    for at in np.ndindex(outcomes.runs.shape):
        priors = learnt(suite, stored[at[0]])[at[1]]
        verdicts, runs = reruns_by_the_package(suite, priors, today[at], stored[at], made.RERUNS)
        assert runs == outcomes.runs[at]
        for number, theirs in enumerate(outcomes.verdicts[(slice(None), *at)].tolist()):
            assert verdicts[min(number, len(verdicts) - 1)] in names[theirs]
        again += len(verdicts) > 1
    assert again


@pytest.mark.parametrize("noise", [
    {"run": 0.005, "session": 0.003}, {"run": 0.035, "session": 0.02}, {"run": 0.01, "session": 0.01, "spoilt": 0.3},
    {"run": 0.02, "session": 0.01, "host": 0.03}, {"run": 0.02, "session": 0.02, "run_df": 3, "session_df": 3},
])
@pytest.mark.parametrize(("sessions", "kinds"), [(1, ("TPOT",)), (2, ("STEP", "TPOT")), (3, ("TPOT",))])
@pytest.mark.parametrize("effect", [-0.06, 0.0, 0.06, 0.4])
def test_simulated_arrays_have_same_verdicts_as_package(made, noise, sessions, kinds, effect):
    rules = tuple(made.rule_of(made.Kind[kind]) for kind in kinds)
    suite = made.Suite(made.Noise(**noise), sessions, metrics=12, per_test=2, effect=effect, rules=rules)
    today, stored = made.draw(suite, 4, np.random.default_rng(1))
    outcome = made.judged(suite, today, stored)
    names = {Verdict.PASS: made.PASS, Verdict.IMPROVED: made.IMPROVED, Verdict.INCONCLUSIVE: made.INCONCLUSIVE,
             Verdict.FAIL: made.FAIL}
    for place in np.ndindex(outcome.runs.shape):
        priors = learnt(suite, stored[place[0]])[place[1]]
        verdicts, runs = by_the_package(suite, priors, today[place], stored[place])
        assert [names[verdict] for verdict in verdicts] == outcome.verdicts[place].tolist()
        assert runs == outcome.runs[place]


@pytest.mark.parametrize("runs", LOOKS)
def test_simulated_majority_rule_equals_package(made, runs):
    today = np.random.default_rng(10).uniform(0, 0.2, (300, runs))
    prior = made.TPOT.prior
    estimates = [shift(list(enumerate(row)), [list(enumerate([0.0] * runs))], prior) for row in today.tolist()]
    effects = np.array([outcome.effect for outcome in estimates])
    assert made.carried(effects, today, 0.02).tolist() == [
        outcome.shown_by_most_runs(0.02) for outcome in estimates
    ]
    assert 0 < made.carried(effects, today, 0.02).sum() < 300


@pytest.mark.parametrize("sessions", [1, 3, 10])
def test_unchanged_suites_raise_no_alarm(made, sessions):
    """400 suite runs of 30 metrics in each cell: at most 1 % with an alarm (8 with chance), calm TPOT decided."""
    for name, suite in made.cells(made.Suite(made.Noise(0, 0), sessions=sessions)):
        outcome = made.simulate(suite, 400, np.random.default_rng(2))
        assert outcome.suites_with(made.FAIL) <= 8, name
        if name == "TPOT 0.5 % / 0.3 %" or (name == "TPOT 1 % / 0.5 %" and sessions > 1):
            assert outcome.share(made.INCONCLUSIVE) <= 0.05


@pytest.mark.parametrize("strange", [{"run_df": 3}, {"spoilt": 0.05}])
def test_heavy_tails_and_spoilt_runs_raise_no_alarm(made, strange):
    for sessions in (3, 10):
        for name, suite in made.cells(made.Suite(made.Noise(0, 0, **strange), sessions=sessions)):
            assert made.simulate(suite, 400, np.random.default_rng(3)).suites_with(made.FAIL) <= 8, name


def test_another_host_raises_no_alarm_unless_hosts_are_ignored(made):
    suite = made.ttft(made.Suite(made.Noise(0.02, 0.005, host=0.05)))
    today, stored = made.draw(suite, 200, np.random.default_rng(4))
    blind = replace(suite, noise=replace(suite.noise, host=0.0))
    alarms = [(made.judged(suite, today, stored).verdicts == made.FAIL).any((1, 2)).sum() for suite in (suite, blind)]
    assert alarms[0] <= 5
    assert alarms[1] > 50


@pytest.mark.parametrize(("run", "session", "effect", "metrics", "power"), [
    (0.005, 0.003, 0.05, 10, 0.97), (0.005, 0.003, 0.05, 30, 0.92), (0.01, 0.005, 0.10, 30, 0.99),
])
def test_simulated_regressions_fail_with_stated_power(made, run, session, effect, metrics, power):
    suite = made.Suite(made.Noise(run, session), 10, metrics, 1, np.log1p(effect), most_runs=5)
    assert made.simulate(suite, 6000 // metrics, np.random.default_rng(5)).share(made.FAIL) >= power


def test_alternative_rules_raise_false_alarms_on_noisy_hardware(made):
    """On calm hardware only Mann–Whitney on pooled requests; on a noisier one thresholds too."""
    suite = made.Suite(made.Noise(0.035, 0.02))
    today, stored = made.draw(suite, 20, np.random.default_rng(6))
    alarms = made.others(suite, today[..., :3], stored, np.random.default_rng(7))
    assert [alarm.any((1, 2)).mean() > 0.3 for alarm in alarms] == [True] * 4


def test_simulated_mann_whitney_equals_scipy(made):
    from scipy.stats import mannwhitneyu

    rng = np.random.default_rng(8)
    ours, theirs = rng.standard_normal((2, 3, 40))
    expected = mannwhitneyu(ours, theirs, alternative="greater", axis=-1, method="asymptotic", use_continuity=False)
    assert made.mann_whitney(ours, theirs) == pytest.approx(expected.pvalue, rel=1e-4)


@pytest.mark.parametrize(("session", "df", "sessions", "alarms", "power"), [
    (0.02, None, 1, 8, 0.0), (0.02, None, 2, 8, 0.96), (0.05, None, 2, 8, 0.0), (0.05, None, 3, 8, 0.0),
    (0.02, 3, 2, 18, 0.0), (0.02, 3, 10, 18, 0.0),
])
def test_quiet_runs_and_noisy_sessions_raise_few_alarms(made, session, df, sessions, alarms, power):
    """400 suite runs of the default metrics of five tests; 1 % and, with t(3) tails, 2 % with chance. The power is of
    +20 %; a fivefold change always fails."""
    suite = replace(made.DEFAULT_SUITE, noise=made.Noise(0.003, session, session_df=df), sessions=sessions)
    assert made.simulate(suite, 400, np.random.default_rng(1)).suites_with(made.FAIL) <= alarms
    slow, gross = (made.simulate(replace(suite, effect=np.log(times)), 100, np.random.default_rng(2))
                   for times in (1.2, 5))
    assert slow.tests_with(made.FAIL) >= power
    assert gross.tests_with(made.FAIL) == 1


@pytest.mark.parametrize(("sessions", "decided"), [(3, 0.95), (10, 0.97)])
def test_learnt_margins_decide_tests_on_noise_of_stored_h200_sessions(made, sessions, decided):
    quiet = made.simulate(made.h200_suite(sessions, learns_margins=True), 200, np.random.default_rng(3))
    assert quiet.suites_with(made.FAIL) <= 5
    assert 1 - quiet.tests_with(made.INCONCLUSIVE) >= decided


@pytest.mark.parametrize("sessions", [1, 2, 3, 10])
def test_a_pass_at_exactly_the_tolerated_margin_comes_as_seldom_as_stated(made, sessions):
    """Runs that differ by 3.5 % and sessions by 2 %; with 5 % at each look 13.6 % against one session."""
    noise = made.Noise(0.035, 0.02)
    suite = made.Suite(noise, sessions, per_test=1, effect=np.log1p(0.05))
    assert made.simulate(suite, 60, np.random.default_rng(3)).share(made.PASS) < 0.075
