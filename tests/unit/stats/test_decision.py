"""Which verdict a difference gets, and how small a one would have been seen."""

from dataclasses import replace
from math import inf, log, log1p

import numpy as np
import pytest
from scipy import stats as scipy_stats

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.stats.decision import MetricComparison, at_each_look, decide, smallest_detectable_effect
from pytest_llmperf.stats.priors import Margins, Prior
from pytest_llmperf.stats.shift import Shift

MARGINS = Margins(0.02, 0.05)
PRIOR = Prior(0.005, 0.004, 6, "test", learnt=True)


def seen(effect, se=0.003, df=20.0, runs=None):
    return MetricComparison(
        Shift(0.0, effect, se, df, 0.005, 0.004, tuple(runs or [effect] * 3), 10, 30, PRIOR), MARGINS
    )


def verdict(effect, alpha=0.001, **how):
    return decide([seen(effect, **how)], alpha)[0]


@pytest.mark.parametrize(("effect", "se", "expected"), [
    (0.0, 0.003, Verdict.PASS), (0.03, 0.003, Verdict.PASS), (0.06, 0.003, Verdict.FAIL),
    (0.048, 0.003, Verdict.FAIL), (0.0, 0.04, Verdict.INCONCLUSIVE), (0.06, 0.03, Verdict.INCONCLUSIVE),
    (-0.06, 0.003, Verdict.IMPROVED), (-0.03, 0.003, Verdict.PASS), (-0.06, 0.02, Verdict.PASS),
    (-0.06, 0.07, Verdict.INCONCLUSIVE),
])
def test_verdict_follows_effect_and_standard_error(effect, se, expected):
    assert verdict(effect, se=se) is expected


def test_effect_above_negligible_margin_fails_although_tolerated():
    """3.5 % to a hair: more than negligible for certain, and tolerated for certain."""
    assert verdict(0.035, se=0.0001) is Verdict.FAIL


def test_fail_and_pass_limits_use_announced_error_levels():
    """FAIL where effect − t(1 − α) se > δ0, PASS where effect + t(96.5 %) se < δ1: of 5 % seven tenths at each look."""
    t = scipy_stats.t(20)
    threshold = 0.02 + t.ppf(0.999) * 0.008
    assert verdict(threshold + 1e-9, se=0.008) is Verdict.FAIL
    assert verdict(threshold - 1e-9, se=0.008) is Verdict.INCONCLUSIVE
    threshold = 0.05 - t.ppf(at_each_look(0.95, sessions=10)) * 0.008
    assert at_each_look(0.95, sessions=10) == pytest.approx(0.965)
    assert verdict(threshold + 1e-9, se=0.008) is Verdict.INCONCLUSIVE
    assert verdict(threshold - 1e-9, se=0.008) is Verdict.PASS


def test_zero_alpha_prevents_fail_and_improved():
    assert verdict(0.5, alpha=0.0) is Verdict.INCONCLUSIVE
    assert verdict(-0.5, alpha=0.0) is Verdict.PASS


def unlearnt(effect, margins=MARGINS):
    """The suite's sessions do not show yet how much they differ."""
    learnt = seen(effect)
    return MetricComparison(replace(learnt.shift, prior=replace(PRIOR, learnt=False)), margins)


@pytest.mark.parametrize(("effect", "expected"), [
    (0.0, Verdict.PASS), (0.06, Verdict.INCONCLUSIVE), (0.249, Verdict.INCONCLUSIVE), (0.251, Verdict.FAIL),
    (-0.06, Verdict.PASS), (-0.251, Verdict.IMPROVED),
])
def test_unknown_spread_of_sessions_lets_five_tolerated_margins_fail(effect, expected):
    assert decide([unlearnt(effect)], 0.001) == [expected]


def test_fourfold_change_is_gross_however_wide_the_margin():
    wide = Margins(0.1, log1p(0.9))
    assert decide([unlearnt(log(4.01), wide), unlearnt(log(3.99), wide)], 0.002) == [Verdict.FAIL, Verdict.INCONCLUSIVE]


def test_unknown_spread_of_sessions_raises_smallest_detectable_change_above_gross_bound():
    known, unknown = seen(0.0).smallest_detectable(0.001), unlearnt(0.0).smallest_detectable(0.001)
    assert known < 0.04
    assert 0.25 < unknown < 0.26


def test_two_spoilt_runs_of_three_do_not_fail_a_metric():
    assert verdict(0.06, runs=[0.09, 0.09, 0.0]) is Verdict.INCONCLUSIVE
    assert verdict(-0.06, runs=[-0.09, -0.09, 0.0]) is Verdict.PASS


def test_metrics_of_one_test_share_alpha_by_holm():
    """The second metric does not fail at a third of α. After the clear failure of the first metric, Holm's rule gives
    the second metric half of α, at which it fails."""
    t = scipy_stats.t(20)
    clear, fair = seen(0.09), seen(0.02 + t.ppf(1 - 0.001 / 2.5) * 0.003)
    assert decide([fair, seen(0), seen(0)], 0.001)[0] is not Verdict.FAIL
    assert decide([fair, clear, seen(0)], 0.001)[:2] == [Verdict.FAIL, Verdict.FAIL]


def test_each_metric_is_decided_with_separate_margins():
    tail = replace(seen(0.06), margins=Margins(0.05, 0.15))
    assert decide([seen(0.06), tail], 0.001) == [Verdict.FAIL, Verdict.PASS]


def test_smallest_detectable_change_is_detected_with_stated_power():
    """Run it: noise of that standard error, known with 12 degrees of freedom."""
    rng, trials, first = np.random.default_rng(6), 40_000, seen(0.0, se=0.004, df=12.0).shift
    smallest = smallest_detectable_effect(first, 0.02, 0.001)
    effects = smallest + 0.004 * rng.standard_normal(trials)
    errors = 0.004 * np.sqrt(rng.chisquare(12, trials) / 12)
    detected = (effects - 0.02) / errors > scipy_stats.t.ppf(0.999, 12)
    assert 0.89 <= detected.mean() <= 0.91


def test_zero_alpha_makes_smallest_detectable_change_infinite():
    assert smallest_detectable_effect(seen(0.0).shift, 0.02, 0.0) == inf
