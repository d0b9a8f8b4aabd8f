"""Intervals of means and ratios against scipy, statsmodels and hand-made figures."""

from math import exp, inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.weightstats import DescrStatsW

from pytest_llmperf.stats.interval import Interval, mean, sd, skewed_interval, t_interval, t_quantile, wider
from pytest_llmperf.stats.ratio import StartSd, provisional_ratio
from pytest_llmperf.stats.segments import skewness_of_mean

samples = st.lists(st.floats(1, 1e6), min_size=2, max_size=30)


@given(samples)
def test_mean_and_sd_equal_numpy(values):
    assert mean(values) == pytest.approx(np.mean(values))
    assert sd(values) == pytest.approx(np.std(values, ddof=1), abs=1e-6)


def test_ratio_of_few_runs_that_differ_much_has_infinite_limit():
    screen = provisional_ratio([1e6, 1e-6], [1e-3, 1e3], StartSd(0.03, "prior"), confidence=0.9995)
    assert screen.interval.low == 0
    assert screen.interval.high == inf
    assert t_interval([1e-9, 1e9], 0.9995, on_log=True).high == inf


def test_sd_of_single_value_is_refused():
    with pytest.raises(ValueError, match="two values"):
        sd([1.0])


@pytest.mark.parametrize(("df", "table"), [(1, 6.314), (2, 2.920), (4, 2.132), (9, 1.833), (30, 1.697), (None, 1.645)])
def test_t_quantiles_match_published_table(df, table):
    assert t_quantile(0.95, df) == pytest.approx(table, abs=5e-4)


@given(samples)
def test_t_interval_equals_statsmodels(values):
    low, high = DescrStatsW(values).tconfint_mean(alpha=0.1)
    interval = t_interval(values, 0.95)
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-6, abs=1e-6)


@given(samples, st.floats(0.1, 10))
def test_on_logs_the_interval_scales_with_the_unit(values, factor):
    first, other = (t_interval(numbers, 0.95, on_log=True) for numbers in (values, [v * factor for v in values]))
    assert (other.low, other.high) == pytest.approx((first.low * factor, first.high * factor))


def test_on_logs_limits_lie_around_the_arithmetic_mean():
    """A limit on a mean applies to the arithmetic mean. An interval around the geometric mean would pass too often."""
    interval = t_interval([1.0, 4.0], 0.95, on_log=True)
    assert sqrt(interval.low * interval.high) == pytest.approx(2.5)


def test_external_estimate_is_centre_of_interval():
    interval = t_interval([1.0, 3.0], 0.95, centre=10.0)
    assert (interval.low + interval.high) / 2 == pytest.approx(10)


def test_wider_interval_has_the_more_careful_limit_on_each_side():
    low, high = Interval(0, 2, 0.95), Interval(1, 4, 0.95)
    assert wider(low, high) == wider(high, low) == Interval(0, 4, 0.95)


def test_interval_without_skewness_is_students():
    reference = scipy_stats.t(10).ppf(0.95)
    found = skewed_interval(5.0, 0.5, 0.0, 0.95, 10)
    assert (found.low, found.high) == pytest.approx((5 - 0.5 * reference, 5 + 0.5 * reference))


def test_small_skewness_raises_only_the_upper_limit_by_the_edgeworth_term():
    """To first order Hall's limit adds skewness × (1 + 2 t²) ÷ 6 standard errors (Johnson, 1978)."""
    symmetric, skewed = (skewed_interval(0.0, 1.0, skewness, 0.95, 10) for skewness in (0.0, 0.001))
    assert skewed.low == symmetric.low
    assert skewed.high - symmetric.high == pytest.approx(0.001 * (1 + 2 * symmetric.high**2) / 6, rel=0.01)


def test_upper_limit_covers_the_mean_of_skewed_values_in_95_percent():
    """Means of 20 exponential values are at most one twentieth as often below the truth as the limit allows."""
    rng = np.random.default_rng(1)
    missed = {"student": 0, "skewed": 0}
    for values in rng.exponential(1.0, (4000, 3, 10)):
        error = float(values.std(ddof=1)) / 30**0.5
        for name, skewness in (("student", 0.0), ("skewed", skewness_of_mean(values, error))):
            missed[name] += skewed_interval(float(values.mean()), error, skewness, 0.95, 29).high < 1
    assert missed["student"] / 4000 > 0.08
    assert missed["skewed"] / 4000 < 0.07


def test_ratio_with_a_negligible_prior_is_the_paired_t_interval_of_logs():
    tops, bottoms = [3.0, 3.3, 3.1, 2.9], [1.0, 1.05, 1.02, 0.99]
    ratio = provisional_ratio(tops, bottoms, StartSd(1e-9, "none"), confidence=0.99)
    logs = [log(top / bottom) for top, bottom in zip(tops, bottoms, strict=True)]
    reference = scipy_stats.ttest_1samp(logs, 0).confidence_interval(0.98)
    assert (ratio.interval.low, ratio.interval.high) == pytest.approx((exp(reference.low), exp(reference.high)))


def test_ratio_with_identical_pairs_is_the_prior_alone():
    ratio = provisional_ratio([3.0] * 3, [1.0] * 3, StartSd(0.10, "default"))
    half_width = 2.326348 * sqrt(2) * 0.10
    assert ratio.ratio == pytest.approx(3)
    assert ratio.interval.low == pytest.approx(3 * exp(-half_width))
    assert ratio.interval.high == pytest.approx(3 * exp(half_width))


def test_satterthwaite_interval_matches_hand_calculation():
    """s_start 10 %, pairs ±5 %: SE² = 0.02 + 0.005/2, df = 0.0225²/0.0025² = 81."""
    ratio = provisional_ratio([exp(0.05), exp(-0.05)], [1.0, 1.0], StartSd(0.10, "default"))
    assert log(ratio.interval.high) == pytest.approx(t_quantile(0.99, 81) * 0.15)
    assert ratio.pair_sd == pytest.approx(sqrt(0.005))


def test_single_pair_uses_between_start_sd_and_more_starts_narrow_interval():
    first = provisional_ratio([2.0], [1.0], StartSd(0.10, "default"))
    assert first.pair_sd is None
    assert log(first.interval.high / 2) == pytest.approx(2.326348 * sqrt(0.04))
    more = provisional_ratio([2.0], [1.0], StartSd(0.10, "default"), numerator_starts=4, denominator_starts=4)
    assert more.interval.high < first.interval.high


def test_interval_contains_the_ratio_without_the_drift_that_pairs_show():
    """5 % a run, A A A B B B with B's seeds reversed: pairs lie 5, 3 and 1 runs apart, 3 on average."""
    apart = (5, 3, 1)
    ratio = provisional_ratio([2 * 1.05**runs for runs in apart], [1.0] * 3, StartSd(0.03, "default"), apart=apart)
    still = provisional_ratio([2 * 1.05**runs for runs in apart], [1.0] * 3, StartSd(0.03, "default"))
    assert ratio.ratio == still.ratio == pytest.approx(2 * 1.05**3)
    assert exp(ratio.drift) == pytest.approx(1.05**3)
    assert ratio.interval.high == still.interval.high
    assert ratio.interval.low == pytest.approx(still.interval.low / 1.05**3)


@pytest.mark.parametrize("apart", [(), (3, 3, 3), (3, 1, -1, -3), (1,)])
def test_pairs_without_drift_leave_the_interval_unchanged(apart):
    tops = [2.0 + 0.1 * runs for runs in range(len(apart) or 3)]
    bottoms, sd = [1.0] * len(tops), StartSd(0.03, "default")
    assert provisional_ratio(tops, bottoms, sd, apart=apart).interval == provisional_ratio(tops, bottoms, sd).interval


@pytest.mark.parametrize(("tops", "bottoms"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0])])
def test_ratio_of_unequal_or_zero_values_is_refused(tops, bottoms):
    with pytest.raises(ValueError, match=r"pairs|above 0"):
        provisional_ratio(tops, bottoms, StartSd(0.1, "default"))
