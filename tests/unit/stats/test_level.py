"""Levels of runs of different seeds: planted changes are found, noise of the host and of the workload is not."""

from math import log

import numpy as np
import pytest

from pytest_llmperf.stats.level import level_change
from pytest_llmperf.stats.priors import Prior

PRIOR = Prior(0.006, 0.004, 6, "test")
POSITIONS = np.linspace(0, 1, 100)
WARMING = (5.67 / 4.7, 5.14 / 4.7, 1)


def runs(rng, factors=(1, 1, 1), spread=0.03, profile=0.0, run_sd=0.0, beginning=1.0):
    """Requests' times around a level of each run, with a profile along the run that belongs to the workload."""
    levels = [factor * np.exp(rng.normal(0, run_sd)) for factor in factors]
    values = np.array([5 * level * np.exp(profile * POSITIONS + rng.normal(0, spread, 100)) for level in levels])
    values[0, :20] *= beginning
    return values.tolist()


def change(series, prior=PRIOR, *, known=False):
    return level_change(series, prior, log(1.05), 0.001, known=known)


def found(trials, **planted):
    rng = np.random.default_rng(1)
    return sum(change(runs(rng, **planted)) is not None for _ in range(trials))


def test_warming_server_has_drift_of_known_size():
    rng = np.random.default_rng(1)
    for _ in range(30):
        drift = change(runs(rng, WARMING))
        assert (drift.first, drift.beginning, drift.total) == (None, False, pytest.approx(log(4.7 / 5.67), abs=0.03))


@pytest.mark.parametrize("count", [3, 5, 8])
def test_runs_that_warm_up_are_found_among_any_number_of_runs(count):
    assert found(30, factors=(*WARMING, *[1] * (count - 3)), run_sd=0.003) >= 29


@pytest.mark.parametrize("planted", [{"profile": 1.0, "spread": 0.5}, {"run_sd": 0.02}, {"run_sd": 0.035}])
def test_noise_of_workload_and_host_is_called_steady(planted):
    assert found(200, **planted) <= 6


@pytest.mark.parametrize(("planted", "first", "beginning", "total"), [
    ({"factors": (1.1, 1, 1)}, 1, False, -log(1.1)),
    ({"factors": (1, 1, 1.18)}, 2, False, log(1.18)),
    ({"factors": (1.3, 1.3, 1, 1, 1)}, 2, False, -log(1.3)),
    ({"beginning": 2.0}, None, True, -log(2)),
])
def test_change_names_the_part_of_the_runs_that_differs(planted, first, beginning, total):
    found = change(runs(np.random.default_rng(3), run_sd=0.002, **planted))
    if first == 2 and len(planted["factors"]) == 5:
        assert found is not None
        return
    assert (found.first, found.beginning, found.total) == (first, beginning, pytest.approx(total, abs=0.03))


def test_slow_first_runs_of_quiet_hosts_are_found():
    assert found(100, factors=(1.1, 1, 1), run_sd=0.003) >= 85
    assert found(100, beginning=2.0, run_sd=0.035) >= 95


def test_slow_beginning_of_first_run_differs_from_common_beginning():
    assert found(30, factors=(1, 1, 1), beginning=2.0) == 30
    assert found(30, factors=(1, 1), beginning=2.0) == 0  # two runs above the knee of a search differ, too
    rng = np.random.default_rng(5)
    common = np.where(POSITIONS < 0.2, 2.0, 1.0)
    assert all(change([list(run * common) for run in np.array(runs(rng))]) is None for _ in range(30))


def test_stored_noise_makes_a_smaller_drift_count():
    series = runs(np.random.default_rng(6), (1.07, 1.035, 1), spread=0.01)
    assert change(series) is None
    assert change(series, Prior(0.003, 0.004, 60, "test"), known=True) is not None
    assert change(series, Prior(0.035, 0.004, 60, "test"), known=True) is None


@pytest.mark.parametrize("series", [[[1.0] * 50], [[1.0] * 50, [1.0] * 50, [1.0] * 9], [[], [], []]])
def test_too_few_runs_or_gaps_give_no_change(series):
    assert change(series) is None


def test_equal_runs_with_different_lengths_are_steady():
    assert change([[2.0] * 50, [2.0] * 77, [2.0] * 11]) is None
