"""At the exact limit neither PASS nor FAIL may come more often than announced, whatever requests share."""

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import norm

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.stats.design import Count
from pytest_llmperf.stats.exceedance import exceedance

TRIALS = 2000
#: 5 % and three standard errors of the simulation.
MOST = 0.05 + 3 * (0.05 * 0.95 / TRIALS) ** 0.5


def autocorrelated(rng, runs, requests, rho=0.6):
    """Standard normal latencies, AR(1) within each run: trials × runs × requests."""
    noise = rng.standard_normal((TRIALS, runs, requests))
    noise[..., 1:] *= (1 - rho**2) ** 0.5
    return lfilter([1.0], [1.0, -rho], noise, axis=-1)


def verdicts(over, starts, allowed):
    """Rates of PASS and FAIL; batches are counted here, ten a run, since that is how they are looked at anyway."""
    trials, runs, requests = over.shape
    counts = over.reshape(trials, runs, 10, requests // 10).sum(-1)
    found = [exceedance([[Count(int(c), requests // 10) for c in run] for run in trial], starts, allowed).verdict
             for trial in counts]
    return [sum(verdict is wanted for verdict in found) / trials for wanted in (Verdict.PASS, Verdict.FAIL)]


@pytest.mark.parametrize(("share", "requests"), [(0.99, 330), (0.99, 1000), (0.95, 100), (0.95, 330)])
def test_three_autocorrelated_runs_on_one_start(share, requests):
    over = autocorrelated(np.random.default_rng(1), 3, requests) > norm.ppf(share)
    assert max(verdicts(over, ["s"] * 3, 1 - share)) <= MOST


@pytest.mark.parametrize(("share", "requests"), [(0.99, 330), (0.99, 1000), (0.95, 100), (0.95, 330)])
def test_five_starts_that_differ(share, requests):
    rng, shift = np.random.default_rng(2), 0.3
    latencies = autocorrelated(rng, 5, requests) + shift * rng.standard_normal((TRIALS, 5, 1))
    over = latencies > norm.ppf(share) * (1 + shift**2) ** 0.5
    assert max(verdicts(over, list("abcde"), 1 - share)) <= MOST


@pytest.mark.parametrize("requests", [500, 1000])
def test_a_clear_margin_is_seen(requests):
    """A tenth of the allowed rate over passes mostly; five times the allowed one fails nearly always."""
    latencies = autocorrelated(np.random.default_rng(3), 3, requests)
    assert verdicts(latencies > norm.ppf(0.999), ["s"] * 3, 0.01)[0] > 0.8
    assert verdicts(latencies > norm.ppf(0.95), ["s"] * 3, 0.01)[1] > 0.95
