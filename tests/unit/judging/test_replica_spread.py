"""Replicas of two running services count as server starts of a claim and show how much the starts differ."""

from dataclasses import replace
from math import exp

import pytest

from pytest_llmperf.judging.replica_spread import Replicas, shows_replicas
from pytest_llmperf.judging.requirements import judge_claim
from pytest_llmperf.metrics.run import CountedBy
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.slo.parse import parse_claim
from pytest_llmperf.stats.ratio import StartSd

#: Logarithms of the replicas' speeds, 1 % apart (sd), and the same with mean 0 for half as many.
FOUR, TWO = (-0.012, -0.004, 0.004, 0.012), (-0.007, 0.007)
STORED = StartSd(0.02, "from 5 stored sessions of this test", sessions=5, stored_sd=0.007)


def service(*speeds, slower=0.0, requests=None, metric="tpot_mean", counted="tpot"):
    """Three runs of a service whose replicas have these speeds."""
    runs = []
    for seed in range(3):
        values = [exp(speed + slower + 0.001 * (seed - 1) * (-1) ** number) for number, speed in enumerate(speeds)]
        shares = requests or [50.0] * len(values)
        replicas = {str(number): {"requests_finished": share, f"{counted}_count": share,
                                  f"{counted}_s_sum": 0.01 * value * share}
                    for number, (value, share) in enumerate(zip(values, shares, strict=True))}
        run = Run.of_values(seed, 1, {metric: 10 * sum(values) / len(values)})
        runs.append(replace(run, block=seed, replicas=replicas if len(speeds) > 1 else {}))
    return Measurement("endpoint", "load", {}, tuple(runs), tuple(run.metrics for run in runs))


def judged(a, b, given=None, text="tpot_mean(a) / tpot_mean(b) <= 1.05"):
    claim, seen = parse_claim(text), Replicas(a, b)
    sides = [tuple(replace(run, counted_by=CountedBy.CHUNKS) for run in side.metrics) for side in (a, b)]
    return judge_claim(claim, *sides, start_sd=seen.start_sd(claim.metric, given), hardware="h200", confidence=0.995,
                       restartable=False, replicas=seen)


def test_claim_of_equal_services_with_four_replicas_each_passes():
    result = judged(service(*FOUR), service(*FOUR))
    assert result.verdict is Verdict.PASS
    assert (result.facts["starts_a"], result.facts["starts_b"]) == (4, 4)
    assert result.facts["start_sd"] == pytest.approx(0.0103, rel=0.01)
    assert result.facts["start_sd_source"] == "from these replicas"


def test_claim_fails_for_a_canary_that_is_ten_percent_slower():
    assert judged(service(*FOUR, slower=0.095), service(*FOUR)).verdict is Verdict.FAIL


def test_claim_without_visible_replicas_names_assumed_sd_and_what_decides():
    result = judged(service(0.0), service(0.0))
    assert result.verdict is Verdict.INCONCLUSIVE
    text = reason_text(result)
    assert "a start-to-start sd of 3 % is assumed, because too few replicas are seen" in text
    assert "metrics=[…]" in text
    assert "replica_header=…" in text
    assert "start_sd={'tpot_mean': …} (1.3 % or less decides" in text


def test_claim_with_two_replicas_each_names_how_many_would_decide():
    result = judged(service(*TWO), service(*TWO))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "replicas of each service decide the claim at this ratio" in reason_text(result)


def test_stored_sessions_and_two_replicas_each_decide_together():
    result = judged(service(*TWO), service(*TWO), STORED)
    assert result.verdict is Verdict.PASS
    assert result.facts["start_sd_source"] == "from these replicas and 5 stored sessions"


def test_sd_comes_from_stored_sessions_where_no_replica_is_visible():
    sd = Replicas(service(0.0), service(0.0)).start_sd("tpot_mean", STORED)
    assert (sd.value, sd.df, sd.source) == (pytest.approx(0.007), 4, "from 5 stored sessions")


def test_sd_that_the_test_states_is_not_replaced():
    given = StartSd(0.2, "the test's own")
    assert Replicas(service(*FOUR), service(*FOUR)).start_sd("tpot_mean", given) is given


def test_replica_with_most_requests_is_worth_more_than_its_share_of_starts():
    equal, unequal = service(*TWO), service(*TWO, requests=[90.0, 10.0])
    assert Replicas(equal, unequal).starts == (pytest.approx(2.0), pytest.approx(1.22, abs=0.01))


def test_tails_keep_the_assumed_sd_and_count_replicas_as_starts():
    text = "tpot_p99(a) / tpot_p99(b) <= 1.05"
    result = judged(service(*FOUR, metric="tpot_p99"), service(*FOUR, metric="tpot_p99"), text=text)
    assert result.facts["start_sd_source"] == "default for tails"
    assert result.facts["starts_a"] == 4
    assert not shows_replicas("tpot_p99")


def test_one_service_with_two_replicas_shows_too_little():
    assert Replicas(service(*TWO), service(0.0)).start_sd("tpot_mean", None) is None


def test_median_ttft_is_learnt_from_the_mean_ttft_of_each_replica():
    sides = [service(*FOUR, metric="ttft_p50", counted="ttft") for _ in range(2)]
    assert judged(*sides, text="ttft_p50(a) / ttft_p50(b) <= 1.05").verdict is Verdict.PASS
