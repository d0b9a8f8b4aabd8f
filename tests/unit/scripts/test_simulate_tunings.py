"""The simulation behind the error rates of tunings, on servers with little noise."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def simulation(load_script):
    load_script("simulate_claims")
    return load_script("simulate_tunings")


def test_tuning_without_noise_proves_the_true_winner_only(simulation):
    rng = np.random.default_rng(1)
    assert [simulation.tuned([1.2, 1.7, 0.6], 0.001, 0.001, rng)[0] for _ in range(5)] == [1] * 5
    assert [simulation.tuned([1.0, 0.8, 0.6], 0.001, 0.001, rng)[0] for _ in range(5)] == [None] * 5


def test_quick_search_without_noise_takes_one_run_per_rate(simulation):
    server = simulation.Server(np.random.default_rng(1), 8.0, 0.0, 0.001)
    assert 7.0 < server.search(6.0, 0) <= 8.0
    assert server.runs <= 4
    assert server.search(9.0, 0, to_beat=9.0) is None
