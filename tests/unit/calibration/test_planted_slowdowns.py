"""A slowdown of TPOT, planted through the time of a step."""

from math import log

import pytest

from pytest_llmperf.calibration.campaign import with_slowdown
from pytest_llmperf.calibration.experiments import MECHANISMS, Experiment, Slowdown, experiments
from pytest_llmperf.emulator.faults import parse_faults
from pytest_llmperf.emulator.noise import parse_noise


@pytest.mark.parametrize("gain", [1.0, 1.4])
def test_planted_step_time_produces_requested_tpot_slowdown(gain):
    """In a queue a step that is 1 % longer makes TPOT more than 1 % longer, and noise, too."""
    tpot = lambda step_time: 6.5 * (1 + step_time) ** gain * (1 + step_time**2)  # noqa: E731
    planted = with_slowdown(Experiment("x", 1), Slowdown(0.05, run_sd=0.005, session_sd=0.003), tpot)
    step_time = parse_faults(planted.faults).step_time
    noise = parse_noise(planted.noise, 1)
    assert tpot(step_time) / tpot(0.0) == pytest.approx(1.05, abs=1e-5)
    effective = log(1.05) / log(1 + step_time)
    assert (noise.run * effective, noise.session * effective) == pytest.approx((0.005, 0.003), rel=1e-4)


def test_every_experiment_can_be_planted():
    for experiment in experiments(10, 2):
        assert parse_faults(experiment.faults) is not None
        assert parse_noise(experiment.noise, 0).run > 0
    assert len(MECHANISMS) == 9
