"""MSER-5 against the cuts of pymser 1.0.22 and by hand, and how often steady series are called otherwise."""

import numpy as np
import pytest
from scipy.signal import lfilter
from simulations.mser import mser


def published():
    """Decaying starts of six lengths, as they were given to pymser (batches of five)."""
    rng = np.random.default_rng(7)
    for number in range(6):
        count = 100 + 40 * number
        transient = 3 * np.exp(-np.arange(count) / (5 + 4 * number))
        yield np.round(10 + transient + rng.standard_normal(count), 3).tolist()


def test_mser_cuts_equal_pymser():
    assert [mser(series).discard for series in published()] == [35, 15, 25, 25, 70, 70]


def test_mser_cut_matches_hand_calculation():
    """Batches 9, 1, 1, 1, …: without the first nothing varies."""
    assert mser([9.0] * 5 + [1.0, 1.0, 1.0, 1.0, 1.0] * 11).discard == 5
    assert mser([3.0] * 60).discard == 0


def steady_series(rng, count, rho=0.6, sd=0.3):
    noise = rng.standard_normal(count)
    noise[1:] *= (1 - rho**2) ** 0.5
    return np.exp(sd * lfilter([1.0], [1.0, -rho], noise))


@pytest.mark.parametrize(("count", "most"), [(100, 0.02), (300, 0.005)])
def test_steady_series_are_called_steady(count, most):
    rng = np.random.default_rng(8)
    wrong = sum(not mser(steady_series(rng, count).tolist()).steady() for _ in range(500))
    assert wrong <= most * 500


def test_mser_cuts_warm_up_and_finds_steady_rest():
    rng = np.random.default_rng(9)
    for _ in range(50):
        truncation = mser((steady_series(rng, 300, sd=0.05) * np.where(np.arange(300) < 45, 2.0, 1.0)).tolist())
        assert truncation.discard >= 45
        assert truncation.steady()


def test_a_warm_up_that_lasts_too_long_is_not_steady():
    rng = np.random.default_rng(10)
    for _ in range(50):
        truncation = mser((steady_series(rng, 300, sd=0.05) * np.where(np.arange(300) < 120, 1.5, 1.0)).tolist())
        assert not truncation.steady()
        assert 0.2 < truncation.step < 0.6


def test_a_small_step_does_not_matter():
    series = np.where(np.arange(300) < 120, 1.04, 1.0) * steady_series(np.random.default_rng(11), 300, sd=0.001)
    truncation = mser(series.tolist())
    assert truncation.step == pytest.approx(0.04, abs=0.01)
    assert truncation.steady()
    assert not truncation.steady(tolerated=0.02)


def test_mser_of_fewer_than_50_values_is_refused():
    with pytest.raises(ValueError, match="50 are needed"):
        mser([1.0] * 49)
