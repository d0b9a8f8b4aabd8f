"""The simulation behind the error rates of means: its intervals are those of the judge."""

import numpy as np
import pytest

from pytest_llmperf.calibration.slow_servers import measured
from pytest_llmperf.calibration.traffic import slow_spells
from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.slo.parse import parse_slo


@pytest.fixture(scope="module")
def simulation(load_script):
    load_script("simulate_claims")
    return load_script("simulate_means")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_simulated_interval_of_a_mean_equals_the_interval_of_the_judge(simulation, seed):
    rng = np.random.default_rng(seed)
    runs = [slow_spells(10, 1, 3)(rng, 300, 1) for _ in range(3)]
    judged = judge_slo(parse_slo("ttft_mean <= 1s"), [measured(run, "ttft") for run in runs], ["start"] * 3).interval
    without, with_skewness = simulation._intervals(1e3 * np.stack([run.ttft_s for run in runs]))
    assert (with_skewness.low, with_skewness.high) == pytest.approx((judged.low, judged.high), rel=1e-6)
    assert without.high <= with_skewness.high
