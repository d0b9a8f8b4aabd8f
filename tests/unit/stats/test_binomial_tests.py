"""Exact binomial tests against published limits and scipy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.stats.interval import Interval, at_least, at_most, fail_limit, pass_limit, share_interval

shares = st.floats(0.001, 0.999)


@pytest.mark.parametrize(("n", "allowed", "passes", "fails"), [
    (100, 0.01, None, 4), (300, 0.01, 0, 7), (1000, 0.01, 4, 16), (5000, 0.01, 38, 63),
    (100, 0.05, 1, 10), (300, 0.05, 8, 22), (1000, 0.05, 38, 63), (5000, 0.05, 224, 277),
])
def test_pass_and_fail_limits_match_published_table(n, allowed, passes, fails):
    assert pass_limit(n, allowed, 0.95) == passes
    assert fail_limit(n, allowed, 0.95) == fails


@pytest.mark.parametrize(("confidence", "first"), [(0.95, 299), (0.99, 459)])
def test_smallest_sample_that_can_prove_a_p99(confidence, first):
    assert pass_limit(first, 0.01, confidence) == 0
    assert pass_limit(first - 1, 0.01, confidence) is None


def test_fail_limit_is_unknown_for_too_few_requests():
    assert fail_limit(1, 0.5, 0.95) is None
    assert fail_limit(0, 0.5, 0.95) is None


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), shares)
def test_tails_of_whole_counts_equal_scipy_binomial_tails(x_of_n, share):
    x, n = x_of_n
    assert at_most(x, n, share) == pytest.approx(binom.cdf(x, n, share), abs=1e-9)
    assert at_least(x, n, share) == pytest.approx(binom.sf(x - 1, n, share), abs=1e-9)


@given(st.floats(0, 50), st.floats(0.1, 5), shares)
def test_binomial_probabilities_are_monotonic_in_fractional_count(x, step, share):
    assert at_most(x, 60, share) <= at_most(x + step, 60, share)
    assert at_least(x, 60, share) >= at_least(x + step, 60, share)


def test_tail_probabilities_beyond_range_are_0_or_1():
    assert (at_most(-1, 5, 0.5), at_most(5, 5, 0.5), at_least(0, 5, 0.5), at_least(6, 5, 0.5)) == (0, 1, 1, 0)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_share_limits_are_clopper_and_pearsons(x_of_n):
    x, n = x_of_n
    expected = binomtest(x, n).proportion_ci(confidence_level=0.9, method="exact")
    limits = share_interval(x, n, 0.95)
    assert (limits.low, limits.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_interval_of_zero_observations_is_refused():
    with pytest.raises(ValueError, match="no observations"):
        share_interval(0, 0, 0.95)


@pytest.mark.parametrize(("limit", "below", "above"), [
    (0.5, Verdict.FAIL, Verdict.PASS), (1.0, Verdict.INCONCLUSIVE, Verdict.PASS),
    (1.5, Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE), (2.0, Verdict.PASS, Verdict.INCONCLUSIVE),
    (2.5, Verdict.PASS, Verdict.FAIL),
])
def test_interval_verdict_follows_position_of_limit(limit, below, above):
    interval = Interval(1.0, 2.0, 0.95)
    assert interval.below(limit) is below
    assert interval.above(limit) is above
    assert interval.level_percent == 90
