"""A server that still warms up gets faster run by run, and that is no noise."""

from math import log

import numpy as np
import pytest
from scipy import stats as scipy_stats

from pytest_llmperf.stats.level import drift


def test_a_fresh_server_is_not_steady():
    """Mean TPOT of three successive runs after a short warm-up: 5.67, 5.14, 4.70 ms, where seeds differ by 2 %."""
    trend = drift([log(value) for value in (5.67, 5.14, 4.70)], sd=0.02)
    assert trend.total == pytest.approx(log(4.70 / 5.67))
    assert not trend.steady(tolerated=0.05)


@pytest.mark.parametrize("runs", [(6.46, 6.40, 6.54), (6.48, 6.40, 6.56), (6.45, 6.47, 6.50)])
def test_warm_servers_are_steady(runs):
    assert drift([log(value) for value in runs], sd=0.02).steady(tolerated=0.05)


def test_drift_slope_equals_scipy_linregress():
    values = [1.0, 1.3, 1.1, 1.8, 1.6]
    assert drift(values, sd=0.1).total == pytest.approx(4 * scipy_stats.linregress(range(5), values).slope)


def test_p_is_uniform_without_drift():
    rng = np.random.default_rng(12)
    ps = [drift(rng.standard_normal(5).tolist(), sd=1.0).p for _ in range(2000)]
    assert scipy_stats.kstest(ps, "uniform").pvalue > 0.001


def test_uncertain_sd_increases_drift_p_value():
    values = [0.0, 0.1, 0.2]
    assert drift(values, sd=0.03, df=3).p > drift(values, sd=0.03).p


@pytest.mark.parametrize(("values", "sd"), [([1.0, 2.0], 0.1), ([1.0, 2.0, 3.0], 0.0)])
def test_drift_without_enough_runs_or_noise_is_refused(values, sd):
    with pytest.raises(ValueError, match="show no drift"):
        drift(values, sd)
