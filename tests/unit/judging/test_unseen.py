"""What one dependent run, few starts and few requests cannot show is withheld, or said."""

import numpy as np
import pytest

from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.judging.sample import unseen_share
from pytest_llmperf.metrics import measure
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.limits import RequestsDependent
from pytest_llmperf.slo.parse import parse_slo
from pytest_llmperf.testing.records import make_record

SLOW_SPELL = np.repeat([1.0, 2.0, 1.0], [100, 100, 100])


def run_of(ttfts_ms, failed=()):
    return measure([make_record(index, intended_ms=100.0 * index, ttft_ms=float(ttft),
                                outcome=Outcome.RESET if index in failed else Outcome.OK)
                    for index, ttft in enumerate(ttfts_ms)], None)


def dependent(seed=0):
    """300 requests around 400 ms, of which a third in the middle takes twice as long."""
    return 400 * SLOW_SPELL * np.exp(np.random.default_rng(seed).normal(0, 0.05, 300))


@pytest.mark.parametrize("metric", ["ttft_p50", "ttft_mean", "ttft_p90", "ttft_p99", "slo_attainment"])
@pytest.mark.parametrize(("limit_ms", "verdict"), [(2000, Verdict.INCONCLUSIVE), (230, Verdict.INCONCLUSIVE),
                                                   (50, Verdict.FAIL)])
def test_one_dependent_run_fails_only_grossly_over_the_limit(metric, limit_ms, verdict):
    attainment = metric == "slo_attainment"
    text = f"slo_attainment(ttft <= {limit_ms}ms) >= 60%" if attainment else f"{metric} <= {limit_ms}ms"
    result = judge_slo(parse_slo(text), [run_of(dependent())], ["s"])
    if attainment:
        verdict = Verdict.INCONCLUSIVE  # no share is four times the allowed 40 %
    assert result.verdict is verdict
    if verdict is Verdict.INCONCLUSIVE:
        assert isinstance(result.cause, RequestsDependent)


def test_same_runs_of_two_seeds_decide():
    runs = [run_of(dependent(seed)) for seed in range(3)]
    assert judge_slo(parse_slo("ttft_p50 <= 150ms"), runs, ["s"] * 3).verdict is Verdict.FAIL


@pytest.mark.parametrize(("failed", "verdict"), [(20, Verdict.INCONCLUSIVE), (150, Verdict.FAIL)])
def test_failures_of_one_run_that_come_together_fail_only_in_large_numbers(failed, verdict):
    run = run_of([400.0] * 300, failed=range(100, 100 + failed))
    assert judge_slo(parse_slo("error_rate <= 1%"), [run], ["s"]).verdict is verdict


def test_pass_of_a_mean_says_which_requests_and_starts_were_not_seen():
    runs = [run_of(400 * np.exp(np.random.default_rng(seed).normal(0, 0.05, 100))) for seed in range(3)]
    facts = judge_slo(parse_slo("ttft_mean <= 500ms"), runs, ["a", "b", "c"]).facts
    assert (round(facts["unseen_starts"], 2), round(facts["unseen_requests"], 3)) == (0.63, 0.01)
    facts = judge_slo(parse_slo("ttft_p50 <= 500ms"), runs, ["a", "a", "a"]).facts
    assert "longest_unseen_s" in facts
    assert {"unseen_starts", "unseen_requests"}.isdisjoint(facts)


@pytest.mark.parametrize("seen", [1, 3, 300])
def test_unseen_share_stays_unseen_with_five_percent_probability(seen):
    assert (1 - unseen_share(seen)) ** seen == pytest.approx(0.05)
