"""Spread of compared metrics: sds of a known table, and the prior that rests on the stored H200 sessions."""

from pathlib import Path

import numpy as np
import pytest

from pytest_llmperf.metrics.registry import find
from pytest_llmperf.stats.priors import prior_for

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def measuring(load_script):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")  # it imports two other scripts
        return load_script("measure_metric_spread")


def test_two_way_sds_recover_planted_spread_and_ignore_seeds(measuring):
    rng = np.random.default_rng(3)
    seeds, sessions = rng.normal(0, 0.5, (1, 40)), rng.normal(0, 0.03, (400, 1))
    run_sd, session_sd = measuring.two_way_sds(seeds + sessions + rng.normal(0, 0.01, (400, 40)))
    assert run_sd == pytest.approx(0.01, rel=0.05)
    assert session_sd == pytest.approx(0.03, rel=0.1)


def test_planted_kernel_moves_median_itl_by_more_than_pair_sd(measuring):
    hosts = measuring.resident_values(ROOT / "docs" / "measured" / "h200" / "resident")
    rows = {line.split(" | ")[0]: line.split(" | ") for line in measuring.planted_table(hosts) if "`" in line}
    assert rows["| `itl_p50`"][1:4] == ["+0.05, sd 0.57", "+1.34, sd 0.31", "+2.74, sd 0.24"]
    itl, ttft = (float(rows[f"| `{name}`"][-1].rstrip(" |")) for name in ("itl_p50", "ttft_p50"))
    assert itl < 0.5 < 5 < ttft


def test_decode_step_prior_is_rms_of_tests_compared_with_default_margins(measuring):
    spread = measuring.stored_spread(ROOT / "baselines" / "h200")
    compared = spread[spread.test.str.contains("answers_come|small_chunks|shared_prefixes|two_gpus")]
    sds = compared.pivot_table(index="test", columns="metric", values=["run_sd", "session_sd"])
    rms = (sds**2).mean() ** 0.5
    prior = prior_for(find("itl_p50"), "h200")
    assert rms["run_sd", "itl_p50"] < prior.run_sd < 2 * rms["run_sd", "itl_p50"]
    assert prior.session_sd == pytest.approx(rms["session_sd", "itl_p50"], abs=0.0005)
    assert f"{compared[compared.metric == 'itl_p50'].sessions.sum()} H200 sessions" in prior.source
    assert (sds["session_sd"]["itl_p50"] < sds["session_sd"]["tpot_mean"]).all()
