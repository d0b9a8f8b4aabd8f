"""SLOs at their exact limit."""

import numpy as np
import pytest

from pytest_llmperf.calibration.limits import Setting, limit_ms, trial, verdicts_at_limit
from pytest_llmperf.model.verdict import Verdict


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_limit_is_the_true_percentile(shift):
    """Of all starts' requests: 5 % lie over the limit of a p95, whatever starts differ by."""
    setting, rng = Setting(95, 100, shift), np.random.default_rng(1)
    runs = [run for _ in range(300) for run in trial(setting, rng)]
    over = [value > limit_ms(setting) for run in runs for value in run.samples("ttft")]
    assert np.mean(over) == pytest.approx(0.05, abs=0.012)


def test_slo_at_exact_limit_rarely_passes():
    verdicts = list(verdicts_at_limit(Setting(95, 100, 0.3), 200, 2))
    assert verdicts.count(Verdict.PASS) <= 20
    assert verdicts.count(Verdict.INCONCLUSIVE) > 150
