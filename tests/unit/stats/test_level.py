"""Drift over runs of different seeds: planted ones are found, what belongs to the workload is not."""

from math import log

import numpy as np
import pytest

from pytest_llmperf.stats.level import level_drift
from pytest_llmperf.stats.prior import Prior

PRIOR = Prior(0.006, 0.004, 6, "test")
TOLERATED = log(1.05)
POSITIONS = np.linspace(0, 1, 100)


def runs(rng, factors=(1, 1, 1), spread=0.1, profile=0.0, seed_sd=0.0):
    """Requests' times around a level of each run, with a profile along the run that belongs to the workload."""
    levels = [factor * np.exp(rng.normal(0, seed_sd)) for factor in factors]
    return [list(5 * level * np.exp(profile * POSITIONS + rng.normal(0, spread, 100))) for level in levels]


def test_warming_server_has_drift_of_known_size():
    rng = np.random.default_rng(1)
    for _ in range(50):
        trend = level_drift(runs(rng, (5.67 / 4.7, 5.14 / 4.7, 1)), PRIOR)
        assert trend.total == pytest.approx(log(4.7 / 5.67), abs=0.06)
        assert not trend.steady(TOLERATED)


@pytest.mark.parametrize("profile", [0.0, 1.0])
def test_steady_runs_are_called_steady_despite_trend_within_runs(profile):
    rng = np.random.default_rng(2)
    assert all(level_drift(runs(rng, spread=0.5, profile=profile), PRIOR).steady(TOLERATED) for _ in range(500))


def test_profile_common_to_all_runs_does_not_change_p_value():
    trends = [
        level_drift(runs(np.random.default_rng(3), (1.2, 1.1, 1), 0.05, profile), PRIOR) for profile in (0.0, 2.0)
    ]
    assert trends[0].p == pytest.approx(trends[1].p, rel=1e-6)


def test_runs_that_differ_by_two_percent_from_seed_to_seed_are_steady():
    rng = np.random.default_rng(4)
    assert all(level_drift(runs(rng, spread=0.01, seed_sd=0.02), PRIOR).steady(TOLERATED) for _ in range(300))


def test_p_is_uniform_where_the_runs_differ_as_the_model_says():
    from scipy.stats import kstest

    rng = np.random.default_rng(5)
    tiny = Prior(1e-6, 1e-6, 6, "test")
    assert kstest([level_drift(runs(rng, spread=0.3), tiny).p for _ in range(1000)], "uniform").pvalue > 0.001


@pytest.mark.parametrize("series", [[[1.0] * 50] * 2, [[1.0] * 50, [1.0] * 50, [1.0] * 9], [[], [], []]])
def test_too_few_runs_or_gaps_give_no_drift(series):
    assert level_drift(series, PRIOR) is None


def test_level_drift_of_equal_runs_with_different_lengths_is_zero():
    assert level_drift([[2.0] * 50, [2.0] * 77, [2.0] * 11], PRIOR).total == pytest.approx(0)
