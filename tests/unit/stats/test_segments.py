"""Variance of a run's total from the slowest changes along the runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter

from pytest_llmperf.stats.segments import (
    COSINES,
    PARTS,
    batches,
    cosines_for,
    dependent_above,
    independent_segments,
    skewness_of_mean,
    slow_variance,
)


@given(st.lists(st.integers(), max_size=50), st.integers(1, 12))
def test_batches_contain_all_items_in_order_with_even_sizes(items, count):
    parts = batches(items, count)
    assert [item for part in parts for item in part] == items
    sizes = [len(part) for part in parts]
    assert not sizes or max(sizes) - min(sizes) <= 1 <= min(sizes)


@pytest.mark.parametrize(("requests", "overlap", "parts"), [
    ((100, 100), 1.0, PARTS),   # one after the other
    ((100, 60), 11.0, 3),       # each part twice as long as what requests share, of the shortest run
    ((100, 100), 80.0, 0),      # all at once: a run is one observation
    ((), 1.0, 0),
])
def test_segments_are_longer_than_the_overlap_of_requests(requests, overlap, parts):
    assert independent_segments(requests, overlap) == parts


@pytest.mark.parametrize(("parts", "seeds", "cosines"), [
    (PARTS, 3, COSINES), (PARTS, 1, COSINES), (3, 3, 3), (3, 1, 2), (0, 3, 1), (0, 1, 1),
])
def test_cosines_are_no_faster_than_the_parts(parts, seeds, cosines):
    assert cosines_for(parts, seeds) == cosines


def residuals(rng, rows, keep=0.0):
    """Stationary rows of sd 1, less the mean at each place, or less their own mean where there is one row."""
    noise = rng.standard_normal((rows, PARTS))
    noise[:, 1:] *= (1 - keep**2) ** 0.5
    values = lfilter([1.0], [1.0, -keep], noise, axis=-1)
    if rows == 1:
        return values - values.mean()
    return values - values.mean(0)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_variance_of_independent_segments_adds_up(rows):
    rng = np.random.default_rng(1)
    variances = [slow_variance(residuals(rng, rows), COSINES) for _ in range(2000)]
    assert {df for _, df in variances} == {COSINES * max(1, rows - 1)}
    assert np.mean([variance for variance, _ in variances]) == pytest.approx(PARTS, rel=0.05)


def test_variance_covers_a_correlation_time_of_a_tenth_of_the_run():
    """The constant and four cosines see 71 % of it; ten independent batches would see 37 %."""
    rng, keep = np.random.default_rng(2), float(np.exp(-10 / PARTS))
    truth = PARTS * (1 + keep) / (1 - keep) - 2 * keep * (1 - keep**PARTS) / (1 - keep) ** 2
    covered = np.mean([slow_variance(residuals(rng, 3, keep), COSINES)[0] for _ in range(2000)])
    assert covered / truth == pytest.approx(0.71, abs=0.05)


def test_course_common_to_all_runs_adds_no_variance():
    course = np.tile(np.arange(PARTS) ** 2.0, (3, 1))
    assert slow_variance(course - course.mean(0), COSINES)[0] == 0


def test_independent_segments_are_called_dependent_in_5_percent():
    rng = np.random.default_rng(3)
    variances = [slow_variance(residuals(rng, 3), COSINES) for _ in range(4000)]
    alarms = [variance / PARTS > dependent_above(df) for variance, df in variances]
    assert np.mean(alarms) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_mean_of_exponential_parts_has_the_skewness_of_a_gamma_distribution(rows):
    """The mean of n exponential values has a skewness of 2 ÷ √n."""
    rng, n = np.random.default_rng(4), rows * PARTS
    draws = rng.exponential(1.0, (2000, rows, PARTS))
    assert np.mean([skewness_of_mean(parts, n**-0.5) for parts in draws]) == pytest.approx(2 / n**0.5, rel=0.1)


def test_course_common_to_all_runs_adds_no_skewness():
    course = np.tile(np.exp(np.arange(PARTS) / 5), (3, 1))
    assert skewness_of_mean(course, 1.0) == pytest.approx(0, abs=1e-9)


def test_skewness_of_mean_is_between_0_and_1():
    outlier = np.zeros((1, 10))
    outlier[0, 3] = 1
    assert skewness_of_mean(outlier, 1e-3) == 1
    assert skewness_of_mean(-outlier, 1e-3) == 0
