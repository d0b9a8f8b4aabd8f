"""From demands and runs to verdicts and the line that users read."""

import re
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from pytest_llmperf.judging.percentiles import body_limit_ms
from pytest_llmperf.judging.requirements import judge_claim, judge_slo
from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.run import CountedBy
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.comparisons import (
    EndpointStartsUnknown,
    MachineDrifts,
    PairsTooFew,
    RatioMissesLimit,
    RatioNearLimit,
    StartsTooFew,
)
from pytest_llmperf.results.causes.limits import (
    BeyondLimit,
    LimitInInterval,
    MetricUnavailable,
    NoInterval,
    ObservationsTooFew,
    RateRefuted,
    RateUndecided,
    RunsMissLimit,
    ShareNearLimit,
    ShareTooLarge,
    StartsDiffer,
    StatisticInfinite,
    TokensUnverified,
    ValuesInfinite,
    ValueZero,
)
from pytest_llmperf.results.sentences import basis_text, estimate_text, limit_text, reason_text
from pytest_llmperf.slo.parse import parse_claim, parse_slo
from pytest_llmperf.stats.ratio import StartSd

PASS, FAIL, INCONCLUSIVE, ERROR = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.ERROR


def run_of(ttfts_ms, failed=(), counters=None, **more):
    records = [make(i, ttft, Outcome.RESET if i in failed else Outcome.OK, **more) for i, ttft in enumerate(ttfts_ms)]
    return measure(records, counters)


def make(index, ttft_ms, outcome, **more):
    from pytest_llmperf.testing.records import make_record
    return make_record(index, intended_ms=100.0 * index, ttft_ms=float(ttft_ms), outcome=outcome, **more)


def spread(n, over=0, seed=0, centre=400.0, beyond=700.0):
    """Latencies around `centre`, none above 480, and `over` of `beyond` evenly among them."""
    values = np.minimum(np.random.default_rng(seed).normal(centre, 20, n), 480.0)
    values[[n * i // over for i in range(over)] if over else []] = beyond
    return values


def judge(text, runs, starts=None, seeds=None):
    return judge_slo(parse_slo(text), runs, starts or ["s"] * len(runs), seeds)


def exceedances(result):
    assert result.numbers["counted_as"] == "over"
    return result.numbers["exceedances"], result.numbers["observations"]


# percentiles

@pytest.mark.parametrize(("n", "over", "verdict"), [
    (1000, 2, PASS), (1000, 10, INCONCLUSIVE), (1000, 30, FAIL), (100, 0, INCONCLUSIVE), (100, 12, FAIL),
])
def test_ttft_p99_is_decided_by_number_of_exceedances(n, over, verdict):
    """Fault 42 among them: 100 requests never pass a p99, but can fail it."""
    assert judge("ttft_p99 <= 500ms", [run_of(spread(n, over))]).verdict is verdict


def test_a_request_exactly_at_the_limit_is_within():
    assert exceedances(judge("ttft_p99 <= 500ms", [run_of([500] * 400)])) == (0, 400)


def test_slo_result_contains_exceedances_interval_and_basis():
    runs = [run_of(spread(1000, 1, seed)) for seed in range(3)]
    result = judge("ttft_p99 <= 500ms", runs)
    assert (result.verdict, result.cause, reason_text(result)) == (PASS, None, "")
    assert exceedances(result) == (3, 3000)
    assert result.numbers["effective_n"] < 3000
    assert (result.numbers["runs"], result.numbers["starts"], round(result.numbers["longest_unseen_s"])) == (3, 1, 10)
    assert (400 < result.interval.low < 500, result.interval.level_percent) == (True, pytest.approx(90))
    assert (result.subject, result.metric, limit_text(result)) == ("ttft_p99 <= 500ms", "ttft_p99", "≤ 500 ms")


def test_too_few_requests_result_names_missing_observations():
    result = judge("ttft_p99 <= 500ms", [run_of(spread(100))])
    assert (result.verdict, type(result.cause)) == (INCONCLUSIVE, ObservationsTooFew)
    assert result.numbers["needed"] > 0
    assert result.interval.high == inf


def test_share_near_limit_is_named_as_cause():
    result = judge("ttft_p95 <= 500ms", [run_of(spread(400, 20))])
    assert isinstance(result.cause, ShareNearLimit)
    assert result.numbers["allowed_share"] == pytest.approx(0.05)


def test_several_starts_are_named():
    runs = [run_of(spread(1000, 0, seed)) for seed in range(5)]
    facts = judge("ttft_p99 <= 500ms", runs, list("abcde")).facts
    assert (facts["runs"], facts["starts"]) == (5, 5)


def test_starts_that_differ_must_stay_clear_of_the_limit():
    """Medians of 340 to 420 ms on five starts: none is over 500 ms, and the next start, or run, may be."""
    runs = [run_of(spread(1000, 0, seed, centre)) for seed, centre in enumerate((340, 360, 380, 400, 420))]
    one_start, five_starts = (judge("ttft_p99 <= 500ms", runs, starts) for starts in (["s"] * 5, list("abcde")))
    assert one_start.verdict is five_starts.verdict is INCONCLUSIVE
    assert isinstance(five_starts.cause, StartsDiffer)
    assert five_starts.numbers["slowdown"] == pytest.approx(1.18, abs=0.005)
    assert judge("ttft_p99 <= 600ms", runs, list("abcde")).verdict is PASS
    assert judge("ttft_p99 <= 400ms", runs, list("abcde")).verdict is FAIL


def test_failed_requests_count_as_exceedances():
    """Fault 26."""
    quick = spread(1000)
    assert judge("ttft_p99 <= 500ms", [run_of(quick)]).verdict is PASS
    broken = judge("ttft_p99 <= 500ms", [run_of(quick, failed=range(0, 1000, 20))])
    assert (broken.verdict, type(broken.cause)) == (FAIL, ShareTooLarge)
    assert exceedances(broken) == (50, 1000)
    assert broken.estimate is None


def test_failed_request_counts_all_requested_gaps_as_exceedances():
    result = judge("itl_p99 <= 500ms", [run_of(spread(100), failed=[3], chunks=11)])
    assert exceedances(result) == (10, 1000)
    result = judge("itl_p99 <= 500ms", [run_of(spread(100), failed=[3], chunk_tokens=(1,) + (4,) * 5)])
    assert exceedances(result) == (5, 500)


def test_gaps_of_one_request_are_not_independent():
    """2 % of the gaps are slow, all in one request of fifty: that proves no FAIL of a p99."""
    from pytest_llmperf.testing.records import make_record
    records = [make_record(i, intended_ms=100.0 * i, itl_ms=100.0 if i == 20 else 10.0, chunks=101) for i in range(50)]
    assert judge("itl_p99 <= 50ms", [measure(records)]).verdict is INCONCLUSIVE


# shares of requests

@pytest.mark.parametrize(("text", "failed", "verdict"), [
    ("error_rate == 0", 0, PASS), ("error_rate == 0", 1, FAIL), ("error_rate <= 0", 1, FAIL),
    ("error_rate <= 5%", 2, PASS), ("error_rate <= 5%", 20, INCONCLUSIVE), ("error_rate <= 5%", 60, FAIL),
    ("slo_attainment(ttft <= 500ms) >= 95%", 2, PASS), ("slo_attainment(ttft <= 500ms) >= 95%", 60, FAIL),
    ("slo_attainment(ttft <= 300ms) >= 95%", 0, FAIL), ("slo_attainment(ttft <= 500ms) >= 100%", 0, PASS),
    ("slo_attainment(ttft <= 500ms) >= 100%", 1, FAIL),
])
def test_share_slos_are_judged_by_number_of_requests(text, failed, verdict):
    marks = {400 * i // failed for i in range(failed)} if failed else set()
    assert judge(text, [run_of(spread(400), failed=marks)]).verdict is verdict


def test_attainment_slo_shows_measured_share():
    result = judge("slo_attainment(ttft <= 500ms) == 93%", [run_of(spread(100, over=7))])
    assert (result.verdict, estimate_text(result)) == (PASS, "93 %")


def test_attainment_interval_has_lower_limit_first():
    result = judge("slo_attainment(ttft <= 500ms) >= 95%", [run_of(spread(400, 4))])
    low, high = 100 * result.interval.low, 100 * result.interval.high
    assert low < 99 < high <= 100
    assert estimate_text(result) == "99 %"


# averages

@pytest.mark.parametrize(("text", "verdict"), [
    ("ttft_mean <= 450ms", PASS), ("ttft_mean <= 350ms", FAIL), ("ttft_p50 <= 450ms", PASS),
    ("ttft_median <= 350ms", FAIL), ("request_throughput >= 5/s", PASS), ("request_throughput >= 15/s", FAIL),
    ("goodput(ttft <= 500ms) >= 5/s", PASS), ("goodput(ttft <= 300ms) >= 5/s", FAIL),
    ("output_throughput >= 50/s", PASS),
])
@pytest.mark.parametrize("count", [1, 3])
def test_mean_and_throughput_slos_are_judged_over_runs_or_batches(text, verdict, count):
    result = judge(text, [run_of(spread(200, 0, seed)) for seed in range(count)])
    assert result.verdict is verdict
    assert (result.numbers["runs"], result.numbers["starts"]) == (count, 1)
    assert result.interval.level_percent == pytest.approx(90)
    assert "exceedances" not in result.numbers
    assert type(result.cause) is (type(None) if verdict is PASS else BeyondLimit)


def test_a_limit_inside_the_interval_is_inconclusive():
    runs = [run_of(spread(100, 0, seed, centre)) for seed, centre in enumerate((380, 400, 420))]
    result = judge("ttft_mean <= 401ms", runs)
    assert (result.verdict, type(result.cause)) == (INCONCLUSIVE, LimitInInterval)


def test_starts_that_differ_widen_an_average():
    runs = [run_of(spread(100, 0, seed, centre)) for seed, centre in enumerate((380, 380, 380, 420, 420, 420))]
    assert judge("ttft_mean <= 430ms", runs, ["s"] * 6).verdict is PASS
    assert judge("ttft_mean <= 430ms", runs, list("aaabbb")).verdict is INCONCLUSIVE


@pytest.mark.parametrize("text", ["ttft_mean <= 430ms", "ttft_p95 <= 500ms", "slo_attainment(ttft <= 500ms) >= 95%"])
def test_repeated_seeds_do_not_narrow_interval(text):
    runs = [run_of(spread(200, 7, seed, centre)) for seed, centre in enumerate((385, 400, 415))]
    once, fresh = judge(text, runs), judge(text, runs * 3)
    again = judge(text, runs * 3, seeds=[0, 1, 2] * 3)
    assert (once.verdict, again.verdict, fresh.verdict) == (INCONCLUSIVE, INCONCLUSIVE, PASS)
    assert (again.numbers["runs"], again.numbers["seeds"], again.numbers["starts"]) == (9, 3, 1)


def test_repeated_runs_of_one_seed_do_not_narrow_interval():
    run = run_of(spread(200))
    once, often = judge("ttft_mean <= 450ms", [run]), judge("ttft_mean <= 450ms", [run] * 4, seeds=[7] * 4)
    assert often.interval == once.interval
    assert often.verdict is PASS


@pytest.mark.parametrize("starts", ["ssss", "abcd"])
def test_all_runs_of_one_seed_are_included_in_estimate(starts):
    """The first of them alone would pass, with an interval that does not hold what is shown as measured."""
    runs = [run_of(spread(200, centre=centre)) for centre in (400, 470, 470, 470)]
    assert judge("ttft_mean <= 430ms", runs[:1]).verdict is PASS
    result = judge("ttft_mean <= 430ms", runs, starts, seeds=[0] * 4)
    assert (result.verdict, result.estimate) == (INCONCLUSIVE, pytest.approx(449.9, abs=0.05))


def test_seed_with_one_run_without_interval_makes_result_inconclusive():
    runs = [run_of(spread(200)), run_of(spread(49))]
    result = judge("ttft_mean <= 450ms", runs, seeds=[0, 0])
    assert (result.verdict, type(result.cause), result.interval) == (INCONCLUSIVE, NoInterval, None)
    assert (result.metric, result.numbers["runs"], result.numbers["seeds"]) == ("ttft_mean", 2, 1)


def test_seeds_that_are_repeated_unevenly_do_not_weigh_more():
    runs = [run_of(spread(200, seed=seed, centre=centre)) for seed, centre in enumerate((380, 400, 420))]
    even = judge("ttft_mean <= 500ms", runs)
    uneven = judge("ttft_mean <= 500ms", [*runs, *[runs[0]] * 5], seeds=[0, 1, 2, *[0] * 5])
    assert (uneven.estimate, uneven.interval) == (pytest.approx(even.estimate), even.interval)


def test_one_short_run_has_no_interval():
    result = judge("ttft_mean <= 450ms", [run_of(spread(49))])
    assert (result.verdict, type(result.cause), result.interval) == (INCONCLUSIVE, NoInterval, None)
    assert (result.metric, result.numbers["runs"]) == ("ttft_mean", 1)


def test_failed_request_makes_mean_infinite():
    result = judge("ttft_mean <= 450ms", [run_of(spread(80), failed=[1, 2])])
    assert (result.verdict, type(result.cause)) == (FAIL, StatisticInfinite)
    assert (result.numbers["failed_requests"], result.numbers["statistic"]) == (2, "mean")


@pytest.mark.parametrize(("failed", "verdict"), [(2, PASS), (30, PASS), (55, FAIL), (90, FAIL)])
def test_median_slo_counts_failed_requests_as_infinite(failed, verdict):
    """With 30 of 100 failed it is what 71 % of the served requests stay below."""
    runs = [run_of(spread(100, seed=seed), failed=range(failed)) for seed in range(3)]
    result = judge("ttft_p50 <= 450ms", runs)
    assert result.verdict is verdict
    assert result.numbers["failed_requests"] == 3 * failed
    assert type(result.cause) is (type(None) if verdict is PASS else StatisticInfinite)
    assert result.numbers.get("statistic") == (None if verdict is PASS else "median")


def test_failed_requests_move_the_median():
    runs = [run_of(spread(100, seed=seed), failed=range(0, 100, 3)) for seed in range(3)]
    assert judge("ttft_p50 <= 404ms", runs).verdict is FAIL
    whole = [run_of(spread(100, seed=seed)) for seed in range(3)]
    assert judge("ttft_p50 <= 404ms", whole).verdict is not FAIL


@pytest.mark.parametrize("text", [
    "ttft_mean <= 450ms", "ttft_p50 <= 450ms", "ttft_max <= 1s", "ttft_p99 <= 1s", "tpot_mean <= 1s",
    "request_throughput >= 5/s", "output_throughput >= 5/s", "goodput(ttft <= 500ms) >= 5/s",
    "slo_attainment(ttft <= 500ms) >= 90%",
])
def test_slo_of_server_without_answers_fails_instead_of_error(text):
    """An ERROR, "make that available", would stand above the error rate's FAIL."""
    whole, dead = run_of(spread(100)), run_of(spread(100), failed=range(100))
    assert judge(text, [dead, dead]).verdict is FAIL
    assert judge(text, [whole, dead]).verdict is not ERROR


def test_a_run_without_requests_has_no_throughput():
    assert judge("request_throughput >= 5/s", [measure([]), measure([])]).verdict is ERROR


# facts of a start, and of a search

@pytest.mark.parametrize(("limit", "verdict"), [("60s", INCONCLUSIVE), ("90s", PASS), ("35s", FAIL)])
def test_runs_of_one_start_have_one_start_up(limit, verdict):
    runs = [run_of([100], counters={"startup_s": 55.0})] * 3
    result = judge(f"startup_s <= {limit}", runs)
    assert result.verdict is verdict
    assert result.numbers == {"starts": 1, "start_sd": 0.2, "start_sd_source": "default for start-up times"}
    assert judge(f"startup_s <= {limit}", runs[:1]) == result


def test_more_server_starts_narrow_startup_interval():
    runs = [run_of([100], counters={"startup_s": seconds}) for seconds in (55.0, 53.0, 57.0, 55.0)]
    assert judge("startup_s <= 66s", runs, list("aabb")).verdict is INCONCLUSIVE
    assert judge("startup_s <= 66s", runs, list("abcd")).verdict is PASS


def test_unknown_startup_time_makes_startup_slo_an_error():
    assert judge("startup_s <= 66s", [run_of([100])]).verdict is ERROR


def search(rate, beyond=None, proven=None, refuted=None):
    return measure([], {"max_rate": rate, "max_rate_beyond": beyond or rate * 1.04, "max_rate_proven": proven,
                        "max_rate_refuted": refuted})


@pytest.mark.parametrize(("text", "verdict"), [
    ("max_rate >= 12/s", INCONCLUSIVE), ("max_rate >= 11/s", PASS), ("max_rate >= 14/s", FAIL),
    ("max_rate <= 11/s", FAIL), ("max_rate <= 14/s", PASS),
])
def test_equal_max_rate_searches_are_no_more_exact_than_search_step(text, verdict):
    """Their spread of 0 would say that two searches know the rate to the last digit."""
    assert judge(text, [search(12.0, proven=8.0, refuted=16.0)] * 2).verdict is verdict


@pytest.mark.parametrize(("text", "verdict"), [
    ("max_rate >= 8/s", PASS), ("max_rate >= 12/s", INCONCLUSIVE), ("max_rate >= 16/s", FAIL),
    ("max_rate <= 16/s", PASS), ("max_rate <= 8/s", FAIL),
])
@pytest.mark.parametrize("seeds", [[0], [0, 0]])
def test_single_max_rate_search_is_judged_by_proven_and_refuted_rates(text, verdict, seeds):
    assert judge(text, [search(12.0, proven=8.0, refuted=16.0)] * len(seeds), seeds=seeds).verdict is verdict


@pytest.mark.parametrize(("text", "verdict"), [
    ("max_rate >= 8/s", PASS), ("max_rate >= 9/s", INCONCLUSIVE), ("max_rate >= 12/s", INCONCLUSIVE),
    ("max_rate >= 20/s", FAIL),
])
def test_searches_of_one_seed_must_agree(text, verdict):
    runs = [search(13.0, proven=12.5, refuted=16.0), search(9.0, proven=8.5, refuted=9.4)]
    result = judge(text, runs, seeds=[0, 0])
    assert (result.verdict, result.estimate) == (verdict, pytest.approx(11))
    assert (result.numbers["proven_rate"], result.numbers["refuted_rate"]) == (8.5, 16)
    assert type(result.cause) is {PASS: type(None), INCONCLUSIVE: RateUndecided, FAIL: RateRefuted}[verdict]


def test_differing_or_unbounded_max_rate_searches_are_inconclusive():
    wide = [search(10.0), search(12.0), search(14.0)]
    assert judge("max_rate >= 10/s", wide).verdict is INCONCLUSIVE
    assert judge("max_rate >= 11.5/s", [search(12.0)] * 6, list("aaabbb")).verdict is INCONCLUSIVE
    assert judge("max_rate >= 11.5/s", [search(12.0)] * 6).verdict is PASS
    unending = [measure([], {"max_rate": 12.0, "max_rate_beyond": None}), search(12.0)]
    assert judge("max_rate <= 14/s", unending).verdict is INCONCLUSIVE
    assert judge("max_rate >= 10/s", unending).verdict is PASS


# the server's metrics

def counted(hits, **more):
    return run_of(spread(100), counters={"prompt_tokens": 1000, "prompt_tokens_cached": hits, **more})


@pytest.mark.parametrize(("hits", "verdict"), [([960], PASS), ([0], FAIL), ([620], INCONCLUSIVE),
                                               ([961, 960, 962], PASS), ([0, 0, 0], FAIL), ([1000, 1000], PASS)])
def test_hit_rate_slo_is_judged_from_counters(hits, verdict):
    assert judge("prefix_cache_hit_rate >= 60%", [counted(h) for h in hits]).verdict is verdict


@pytest.mark.parametrize(("preemptions", "verdict"), [([0, 0], PASS), ([0, 3], FAIL)])
def test_counts_are_exact_in_every_run(preemptions, verdict):
    result = judge("preemptions == 0", [counted(0, preemptions=p) for p in preemptions])
    assert (result.verdict, result.estimate) == (verdict, max(preemptions))
    assert result.numbers["missing_runs"] == sum(count > 0 for count in preemptions)
    assert type(result.cause) is (type(None) if verdict is PASS else RunsMissLimit)


def test_maximum_slo_is_judged_by_largest_value():
    both = judge("ttft_max <= 500ms", [run_of([300, 400]), run_of([200, 450])])
    assert both.verdict is PASS
    assert estimate_text(both) == "450 ms"
    assert judge("ttft_max <= 500ms", [run_of(spread(50)), run_of(spread(50, 1))]).verdict is FAIL


@pytest.mark.parametrize("name", ["kv_usage_peak <= 90%", "spec_acceptance_length >= 2", "expert_balance >= 60%",
                                  "gpu_utilization >= 60%"])
def test_one_run_of_a_server_average_has_no_interval(name):
    run = counted(0, kv_usage_peak=0.5, spec_drafts=10, spec_accepted_tokens=20, expert_balance_sum=8.1,
                  expert_balance_steps=10, gpu_utilization=0.9)
    assert judge(name, [run]).verdict is INCONCLUSIVE
    assert judge(name, [run, run]).verdict is PASS


def test_quarter_of_the_observations_exceeds_the_limit_that_shows_dependence():
    run = run_of(range(1, 101))
    limit_ms = body_limit_ms([run], "ttft")
    assert sum(value > limit_ms for value in run.samples("ttft")) == 25


@pytest.mark.parametrize(("text", "verdict"), [
    ("spec_acceptance_rate >= 30%", FAIL), ("spec_acceptance_rate <= 90%", PASS),
    ("spec_acceptance_length >= 2", ERROR),
])
def test_verdict_about_drafts_says_that_nothing_was_drafted(text, verdict, message):
    counters = {"spec_draft_tokens": 0, "spec_accepted_tokens": 0, "spec_drafts": 0}
    runs = [run_of([400] * 9, counters=counters) for _ in range(3)]
    result = judge_slo(parse_slo(text), runs, ["start"] * 3)
    assert result.verdict is verdict
    message(*filter(None, (reason_text(result), basis_text(result))))


def test_mechanism_about_drafts_says_that_nothing_was_drafted(message):
    runs = [run_of([400] * 9, counters={"spec_draft_tokens": 0, "spec_accepted_tokens": 0}) for _ in range(2)]
    drafting = [run_of([400] * 9, counters={"spec_draft_tokens": 9, "spec_accepted_tokens": 5}) for _ in range(2)]
    claim = parse_claim("spec_acceptance_rate(a) >= 30%")
    message(reason_text(judge_claim(claim, runs, drafting)))
    assert "drafted" not in basis_text(judge_claim(claim, drafting, runs))


@pytest.mark.parametrize(("text", "needs"), [
    ("prefix_cache_hit_rate >= 60%", "prompt_tokens_cached"), ("preemptions == 0", "preemptions"),
    ("expert_balance >= 60%", "--expert-balancedness-report-mode prometheus"),
    ("kv_usage_peak <= 50%", "perf.measure(…, gauges=True)"), ("max_rate >= 3/s", "a search: perf.max_rate(…)"),
    ("tpot_p99 <= 60ms", "output tokens"), ("tpot_mean <= 60ms", "output tokens"),
    ("goodput(tpot <= 60ms) >= 1/s", "a served request"), ("slo_attainment(tpot <= 60ms) >= 99%", "a served request"),
])
def test_unavailable_metric_is_an_error_with_cause(text, needs):
    """Fault 45."""
    whole = run_of(spread(400))
    silent = measure([replace(record, output_tokens=None, chunk_tokens=None) for record in whole.records])
    result = judge(text, [whole, silent])
    assert (result.verdict, type(result.cause)) == (ERROR, MetricUnavailable)
    assert result.numbers["missing_runs"] >= 1
    assert result.numbers["of_runs"] == 2
    assert needs in reason_text(result)
    assert result.estimate is None


@pytest.mark.parametrize(("runs", "starts"), [([], []), ([run_of([1])], ["a", "b"])])
def test_missing_runs_or_unmatched_starts_are_refused(runs, starts):
    with pytest.raises(ValueError, match="one start and one seed per run"):
        judge_slo(parse_slo("ttft_p99 <= 1ms"), runs, starts)


# claims

def side(centre, **counters):
    return [run_of(spread(50, 0, seed, centre), counters=counters) for seed in range(3)]


def default_sd(result):
    assert result.numbers["start_sd_source"].startswith("default")
    return result.numbers["start_sd"]


@pytest.mark.parametrize(("text", "verdict"), [
    ("ttft_p50(b) / ttft_p50(a) >= 2", PASS), ("ttft_p50(b) / ttft_p50(a) >= 3.9", INCONCLUSIVE),
    ("ttft_p50(b) / ttft_p50(a) >= 6", FAIL), ("ttft_p50(a) / ttft_p50(b) <= 0.5", PASS),
    ("ttft_p50(a) / ttft_p50(b) <= 0.15", FAIL),
])
def test_claim_verdict_follows_ratio_interval(text, verdict):
    result = judge_claim(parse_claim(text), side(100), side(400))
    assert result.verdict is verdict
    assert (result.numbers["pairs"], result.numbers["starts_a"], result.numbers["starts_b"]) == (3, 1, 1)
    assert default_sd(result) == pytest.approx(0.1)
    assert result.interval.level_percent == pytest.approx(98)
    assert type(result.cause) is {PASS: type(None), INCONCLUSIVE: RatioNearLimit, FAIL: RatioMissesLimit}[verdict]


def test_claim_result_has_limit_verdict_and_pairs():
    result = judge_claim(parse_claim("ttft_p50(b) / ttft_p50(a) >= 2"), side(100), side(400))
    assert (limit_text(result), result.verdict, result.numbers["pairs"]) == ("≥ 2×", Verdict.PASS, 3)


def test_an_open_claim_says_how_many_starts_would_decide():
    result = judge_claim(parse_claim("ttft_p50(b) / ttft_p50(a) >= 3.5"), side(100), side(400))
    assert (result.verdict, type(result.cause)) == (INCONCLUSIVE, StartsTooFew)
    assert result.numbers["needed_starts"] > 1


@pytest.mark.parametrize(("others", "starts", "cause", "needed_starts"), [
    ([220.0, 90.0, 120.0], "ssss", StartsTooFew, 5),
    ([150.0], "ss", StartsTooFew, 2),
    ([150.0], "su", PairsTooFew, None),
])
def test_undecided_claim_names_missing_starts_or_pairs(others, starts, cause, needed_starts):
    """Two starts a side, of which the deviation is known, are not asked for where there were two."""
    tops = [125.0 if len(others) == 1 else 100.0, *others]
    a, b = ([run_of([value] * 60) for value in side] for side in (tops, [100.0] * len(tops)))
    result = judge_claim(parse_claim("ttft_p50(a) / ttft_p50(b) >= 1"), a, b, starts_a=starts, starts_b=starts,
                         start_sd=StartSd(0.03, "test"))
    assert (result.verdict, type(result.cause)) == (INCONCLUSIVE, cause)
    assert (result.numbers["pairs"], result.numbers.get("needed_starts")) == (len(tops), needed_starts)


def test_open_claim_on_endpoints_asks_for_no_server_start():
    """An endpoint is never started again: the remedy is to state the between-start sd (start_sd=)."""
    a, b = ([run_of([value] * 60)] * 3 for value in (100.0, 115.0))
    claim = parse_claim("ttft_p50(b) / ttft_p50(a) >= 1.05")
    assert isinstance(judge_claim(claim, a, b).cause, StartsTooFew)
    result = judge_claim(claim, a, b, restartable=False)
    assert (result.verdict, type(result.cause)) == (INCONCLUSIVE, EndpointStartsUnknown)
    sd = re.search(r"start_sd={'ttft_p50': …} \(([\d.]+) % or less decides the claim", reason_text(result))[1]
    start_sd = StartSd(float(sd) / 100, "the test's own")
    assert judge_claim(claim, a, b, restartable=False, start_sd=start_sd).verdict is PASS


def test_open_claim_on_endpoints_with_equal_starts_asks_for_pairs():
    a, b = ([run_of([value] * 60) for value in values] for values in ((100.0, 104.0, 96.0), (112.0, 100.0, 118.0)))
    result = judge_claim(parse_claim("ttft_p50(b) / ttft_p50(a) <= 1.05"), a, b, restartable=False,
                         start_sd=StartSd(0.003, "the test's own"))
    assert (result.verdict, type(result.cause)) == (INCONCLUSIVE, PairsTooFew)


def test_drift_is_named_as_cause_of_undecided_claim():
    a, b = [run_of([100.0] * 60)] * 3, [run_of([120 * 1.05**runs] * 60) for runs in (5, 3, 1)]
    sd = StartSd(0.01, "test")
    result = judge_claim(parse_claim("ttft_p50(b) / ttft_p50(a) >= 1.3"), a, b, start_sd=sd, apart=(5, 3, 1))
    assert (result.verdict, type(result.cause)) == (INCONCLUSIVE, MachineDrifts)
    assert result.numbers["drift_share"] > 0
    turned = judge_claim(parse_claim("ttft_p50(a) / ttft_p50(b) <= 0.769"), a, b, start_sd=sd, apart=(5, 3, 1))
    assert (turned.verdict, type(turned.cause)) == (result.verdict, MachineDrifts)
    assert turned.numbers["drift_share"] == pytest.approx(result.numbers["drift_share"])


@pytest.mark.parametrize(("metric", "sd"), [
    ("ttft_p50", 0.1), ("e2el_mean", 0.1), ("tpot_mean", 0.03), ("itl_p50", 0.03), ("itl_p99", 0.15),
    ("largest_stall_mean", 0.15), ("output_throughput", 0.03),
])
def test_each_metric_has_a_stated_prior(metric, sd):
    result = judge_claim(parse_claim(f"{metric}(a) / {metric}(b) <= 9"), side(100), side(400))
    assert default_sd(result) == pytest.approx(sd)
    sd = 0.15 if sd == 0.03 else sd
    result = judge_claim(parse_claim(f"{metric}(a) / {metric}(b) <= 9"), side(100), side(400), hardware="cpu")
    assert default_sd(result) == pytest.approx(sd)


def test_a_calibrated_spread_replaces_the_default():
    claim = parse_claim("ttft_p50(b) / ttft_p50(a) >= 3.5")
    calibrated = judge_claim(claim, side(100), side(400), start_sd=StartSd(0.02, "calibrated on this host"))
    assert calibrated.verdict is PASS
    assert (calibrated.numbers["start_sd"], calibrated.numbers["start_sd_source"]) == (0.02, "calibrated on this host")


@pytest.mark.parametrize(("text", "hits", "verdict"), [
    ("prefix_cache_hit_rate(a) >= 0.6", 700, PASS), ("prefix_cache_hit_rate(a) >= 0.6", 0, FAIL),
    ("prefix_cache_hit_rate(b) == 0", 700, PASS), ("prefix_cache_hit_rate(a) == 0", 1, FAIL),
])
def test_mechanism_must_hold_in_every_run_of_named_side(text, hits, verdict):
    a = side(100, prompt_tokens=1000, prompt_tokens_cached=hits)
    b = side(400, prompt_tokens=1000, prompt_tokens_cached=0)
    result = judge_claim(parse_claim(text), a, b)
    assert result.verdict is verdict
    assert (result.numbers["counted_as"], result.numbers["runs"]) == ("each run", 3)
    assert result.numbers["missing_runs"] == (0 if verdict is PASS else 3)
    assert type(result.cause) is (type(None) if verdict is PASS else RunsMissLimit)
    assert result.metric == parse_claim(text).metric + text[text.index("("):text.index(")") + 1]


@pytest.mark.parametrize("text", ["prefix_cache_hit_rate(a) >= 0.6",
                                  "spec_acceptance_length(a) / spec_acceptance_length(b) >= 1"])
def test_unavailable_sides_are_named(text):
    result = judge_claim(parse_claim(text), side(100), side(400))
    assert (result.verdict, type(result.cause)) == (ERROR, MetricUnavailable)
    assert (result.numbers["side"], result.numbers["missing_runs"], result.numbers["of_runs"]) == ("a", 3, 3)


def test_a_ratio_of_zero_is_an_error():
    claim = parse_claim("send_delay_p50(a) / send_delay_p50(b) <= 2")
    result = judge_claim(claim, side(100), side(400))
    assert (result.verdict, type(result.cause)) == (ERROR, ValueZero)


@pytest.mark.parametrize(("text", "refused", "verdict"), [
    ("ttft_p50(b) / ttft_p50(a) >= 3", 0, PASS),
    ("ttft_p50(b) / ttft_p50(a) >= 3", 30, PASS),   # the slowest of what was served, near the rest
    ("ttft_p50(b) / ttft_p50(a) >= 3", 60, ERROR),
    ("ttft_p99(b) / ttft_p99(a) >= 3", 2, ERROR),
    ("ttft_mean(b) / ttft_mean(a) >= 3", 1, ERROR),
    ("request_throughput(a) / request_throughput(b) <= 2", 60, PASS),
])
def test_dropped_requests_do_not_make_side_faster(text, refused, verdict):
    a = [run_of(spread(100, 0, seed, 100), failed=range(refused)) for seed in range(3)]
    b = [run_of(spread(100, 0, seed, 1000)) for seed in range(3)]
    result = judge_claim(parse_claim(text), a, b)
    assert result.verdict is verdict
    if verdict is ERROR:
        assert isinstance(result.cause, ValuesInfinite)
        assert (result.numbers["side"], result.numbers["missing_runs"], result.numbers["of_runs"]) == ("a", 3, 3)
        assert result.numbers["failed_requests"] == 3 * refused


def test_ratio_of_medians_counts_failed_requests_as_infinite():
    """Of 100 requests 40 fail: the median of all is what 83 % of the served stay below."""
    a = [run_of([100.0] * 45 + [400.0] * 55, failed=range(40)) for _ in range(3)]
    result = judge_claim(parse_claim("ttft_p50(b) / ttft_p50(a) >= 2"), a, side(400))
    assert (result.verdict, result.estimate) == (FAIL, pytest.approx(1, abs=0.005))


def test_sides_with_different_numbers_of_runs_raise_value_error():
    with pytest.raises(ValueError, match="no pairs"):
        judge_claim(parse_claim("ttft_p50(b) / ttft_p50(a) >= 2"), side(100), side(400)[:2])


def test_failed_request_makes_maximum_infinite():
    answered = run_of([300, 400, 450])
    assert judge("ttft_max <= 500ms", [answered]).verdict is PASS
    broken = judge("ttft_max <= 500ms", [answered, run_of([300, 400, 450], failed=[2])])
    assert (broken.verdict, type(broken.cause)) == (FAIL, StatisticInfinite)
    assert (broken.numbers["failed_requests"], broken.numbers["statistic"]) == (1, "max")
    assert judge("send_delay_max <= 500ms", [run_of([300, 400, 450], failed=[2])]).verdict is PASS  # it was sent


@pytest.mark.parametrize("seeds", [None, [7, 7]], ids=["one run", "runs of one seed"])
def test_survivors_give_no_interval_of_a_median_that_counts_failures(seeds):
    """Half of the requests are slow, a fifth fails: the median of all is 900 ms, that of the survivors 100 ms."""
    ttfts = [900.0 if i % 20 < 9 else 100.0 for i in range(200)]
    failed = [i for i in range(200) if i % 20 >= 16]
    result = judge("ttft_p50 <= 500ms", [run_of(ttfts, failed=failed)] * (1 if seeds is None else 2), seeds=seeds)
    assert result.verdict is INCONCLUSIVE
    assert (result.estimate, result.interval) == (900, None)


@pytest.mark.parametrize(("prompts", "verdict"), [([1000] * 100, PASS), ([64] * 90 + [8000] * 10, INCONCLUSIVE)])
def test_hit_rate_interval_includes_variation_of_prompt_lengths(prompts, verdict):
    records = [make(i, 50, Outcome.OK, prompt_tokens=tokens) for i, tokens in enumerate(prompts)]
    counters = {"prefix_cache_queries": float(sum(prompts)), "prefix_cache_hits": 0.8 * sum(prompts)}
    assert judge("prefix_cache_hit_rate >= 70%", [measure(records, counters)]).verdict is verdict


@pytest.mark.parametrize("metric", ["tpot_p90", "itl_p90", "largest_stall_p90"])
def test_a_failed_answer_of_one_token_has_no_time_between_tokens(metric):
    def answer(index):
        request = 1 if index % 10 else 64
        outcome = Outcome.TIMEOUT if index % 50 == 7 else Outcome.OK
        return make(index, 100, outcome, chunks=request)

    result = judge(f"{metric} <= 20ms", [measure([answer(index) for index in range(1000)])])
    assert result.verdict is PASS
    assert exceedances(result)[0] == 0


# token counts that only the usage says

def unconfirmed(tokens=(2,) * 8, **counters):
    """A run whose answers say how many tokens they have, chunk by chunk nobody."""
    records = [replace(make(i, 50, Outcome.OK, chunk_tokens=tokens), chunk_tokens=None) for i in range(300)]
    return measure(records, counters)


@pytest.mark.parametrize("text", [
    "tpot_p50 <= 500ms", "tpot_p99 <= 500ms", "tpot_max <= 500ms", "itl_p95 <= 1ms", "largest_stall_p50 <= 1s",
    "output_throughput >= 1/s", "total_token_throughput >= 1/s", "slo_attainment(ttft <= 1s, tpot <= 1s) >= 90%",
    "goodput(largest_stall <= 1s) >= 1/s",
])
def test_unverified_token_count_leaves_token_metrics_inconclusive(text):
    result = judge(text, [unconfirmed(), unconfirmed()])
    assert (result.verdict, type(result.cause)) == (INCONCLUSIVE, TokensUnverified)
    assert (result.numbers["missing_runs"], result.numbers["of_runs"]) == (2, 2)
    assert result.estimate is not None


@pytest.mark.parametrize("text", [
    "ttft_p95 <= 500ms", "e2el_p50 <= 5s", "error_rate == 0", "request_throughput >= 1/s", "goodput(ttft <= 1s) >= 1/s",
])
def test_unverified_token_count_leaves_the_rest_decided(text):
    assert judge(text, [unconfirmed(), unconfirmed()]).verdict is PASS


def test_counter_of_the_server_verifies_the_counts_of_a_run():
    confirmed = unconfirmed(generation_tokens=16.0 * 300)
    assert confirmed.counted_by is CountedBy.SERVER
    assert judge("tpot_p50 <= 500ms", [confirmed, confirmed]).verdict is PASS
    assert unconfirmed(generation_tokens=8.0 * 300).counted_by is None


def test_counter_of_the_server_verifies_no_run_in_which_requests_failed():
    silent = [replace(make(i, 50, Outcome.RESET if i == 7 else Outcome.OK), chunk_tokens=None) for i in range(20)]
    assert measure(silent, {"generation_tokens": 190.0}).counted_by is None


def test_answers_of_one_token_need_no_count():
    assert unconfirmed((1,)).counted_by is CountedBy.CHUNKS
    assert judge("output_throughput >= 1/s", [unconfirmed((1,))] * 2).verdict is PASS


def test_ratio_with_unverified_token_counts_is_inconclusive():
    sound = run_of([50] * 300, chunk_tokens=(2,) * 8)
    for sides in ((unconfirmed(), sound), (sound, unconfirmed())):
        result = judge_claim(parse_claim("tpot_p50(b) / tpot_p50(a) >= 0.1"), [sides[0]] * 3, [sides[1]] * 3)
        assert (result.verdict, type(result.cause)) == (INCONCLUSIVE, TokensUnverified)
        assert result.numbers["side"] == ("b" if sides[0] is sound else "a")
    claim = parse_claim("ttft_p50(b) / ttft_p50(a) >= 0.1")
    assert judge_claim(claim, [unconfirmed()] * 3, [sound] * 3).verdict is PASS
