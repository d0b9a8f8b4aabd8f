"""What scripts/simulate_baseline_growth.py shows: a young baseline grows, and a creeping regression does not get in."""

import importlib.util
import random
import sys
from math import log
from pathlib import Path
from statistics import fmean

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "simulate_baseline_growth.py"


@pytest.fixture(scope="module")
def growth():
    spec = importlib.util.spec_from_file_location("simulate_baseline_growth", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def histories(growth, metric, step):
    rng = random.Random(7)
    return [growth.history(metric, step, 10, rng) for _ in range(12)]


@pytest.mark.parametrize("metric", ["tpot_mean", "ttft_p50", "output_throughput"])
def test_unchanged_sessions_are_stored_by_simulated_updates(growth, metric):
    assert fmean(sum(history.taken) for history in histories(growth, metric, 0.0)) > 9.3


@pytest.mark.parametrize("step", [0.01, 0.02, 0.05])
def test_gradual_drift_stays_below_half_of_tolerated_margin(growth, step):
    """Steps that a comparison with few sessions cannot see."""
    simulated = histories(growth, "tpot_mean", step)
    assert max(session.level for session in simulated) < log(1.05) * 0.6
    assert fmean(sum(session.taken) for session in simulated) < 6
