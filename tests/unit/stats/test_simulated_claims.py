"""The simulation behind the error rates of claims: its arrays decide as the package does, and a small run of it.

The full tables: python scripts/simulate_verdicts.py drift starts suites --suites 20000.
"""

import importlib.util
import sys
from math import exp, log
from pathlib import Path

import numpy as np
import pytest

from pytest_llmperf.stats.ratio import StartSd, provisional_ratio

SCRIPT = Path(__file__).parents[3] / "scripts" / "simulate_claims.py"
CLAIMS = 4000


@pytest.fixture(scope="module")
def made():
    spec = importlib.util.spec_from_file_location("simulate_claims", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("apart", [(), (5, 3, 1), (3, 3, 3), (5, 3, 1, -1, -3, -5)])
def test_interval_of_arrays_is_the_package_s(made, apart):
    rng = np.random.default_rng(1)
    logs = log(1.3) + 0.05 * rng.standard_normal((20, len(apart) or 3))
    distances = np.array(apart) if len(set(apart)) > 1 else None
    low, high = made.interval(logs, distances, np.full(20, 0.03), 0.995, (2, 1))
    for i, row in enumerate(logs):
        screen = provisional_ratio([exp(value) for value in row], [1.0] * len(row), StartSd(0.03, "test"), apart=apart,
                                   numerator_starts=2, denominator_starts=1, confidence=0.995)
        assert (log(screen.interval.low), log(screen.interval.high)) == pytest.approx((low[i], high[i]), abs=1e-9)


@pytest.mark.parametrize(("drift", "turned", "least", "most"), [
    (0.0, False, 0.0, 0.012), (0.0, True, 0.0, 0.012), (0.01, True, 0.0, 0.012), (0.05, False, 0.7, 0.9),
    (0.05, True, 0.0, 0.012), (-0.05, True, 0.0, 0.012),
])
def test_drift_leaves_a_claim_at_the_limit_inconclusive(made, drift, turned, least, most):
    """TPOT; at most 1 % and three standard errors either side. With seeds in A's order 5 % a run decides 80 %."""
    outcomes = made.judged(made.Claimed(1.2, 1.2, 0.03, 0.03, 0.006, drift, turned), CLAIMS, np.random.default_rng(2))
    shares = [(outcomes[-1] == verdict).mean() for verdict in (made.PASS, made.FAIL)]
    assert least <= max(shares) <= most + 3 * (0.01 * 0.99 / CLAIMS) ** 0.5


@pytest.mark.parametrize(("sessions", "least"), [(10, 0.6), (5, 0.25)])
def test_stored_sessions_decide_claim_that_the_default_leaves_open(made, sessions, least):
    """TTFT of 1.2 with truth 1.35, starts and sessions that differ by 2.7 %."""
    rng = np.random.default_rng(3)
    claim = made.Claimed(1.35, 1.2, 0.1, 0.027, 0.02)
    learned = made.learned_sds(made.levels(0.027, (CLAIMS, sessions), rng, None), 0.027, 0.1)
    assert (made.judged(claim, CLAIMS, rng)[-1] == made.PASS).mean() < 0.1
    assert (made.judged(claim, CLAIMS, rng, learned)[-1] == made.PASS).mean() > least


@pytest.mark.parametrize("starts", [0.027, 0.055, 0.1])
@pytest.mark.parametrize("sessions", [3, 5, 10])
def test_stored_sessions_keep_the_false_verdict_rate(made, starts, sessions):
    rng = np.random.default_rng(4)
    learned = made.learned_sds(made.levels(starts, (CLAIMS, sessions), rng, None), 0.027, 0.1)
    ends = made.judged(made.Claimed(1.2, 1.2, 0.1, starts, 0.02), CLAIMS, rng, learned)[-1]
    assert max((ends == verdict).mean() for verdict in (made.PASS, made.FAIL)) <= 0.01 + 3 * (0.01 / CLAIMS) ** 0.5


def test_every_table_prints(made):
    for table in made.TABLES.values():
        rows = list(table(20, np.random.default_rng(5)))
        assert len(rows) > 5
        assert all(row.count("|") == rows[1].count("|") for row in rows[1:])
