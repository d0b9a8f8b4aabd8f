"""Validity before statistics; claims with causes, prices and guards."""

from dataclasses import replace

import pytest

from pytest_llmperf import Verdict
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import SloError
from pytest_llmperf.judging.claim_judge import claim_judge, judge_slos
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.results.causes.limits import RunsInvalid
from pytest_llmperf.results.causes.runs import (
    AnswersNotStreamed,
    CacheNotEmpty,
    ChunksCoalesced,
    LoadProcessSuspended,
    RequestsFailed,
    ServerRestarted,
)
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.slo.parse import parse_slo
from pytest_llmperf.stats.priors import Margins
from pytest_llmperf.testing.records import make_record

SETTINGS = Settings()


@pytest.fixture
def side(make_run, make_measurement):
    """Three seeds with these latencies; `counters` as the server's."""

    def side(ttft_ms=50.0, itl_ms=10.0, chunks=10, counters=False, coalesced_chunks=0, **fields):
        def records(seed):
            return [
                make_record(i, intended_ms=100 * i, ttft_ms=ttft_ms + 0.1 * seed, itl_ms=itl_ms, chunks=chunks,
                            coalesced_chunks=coalesced_chunks)
                for i in range(20)
            ]

        runs = [make_run(records(seed), seed=seed, counters=counters, **fields) for seed in range(3)]
        return make_measurement(*runs)

    return side


def problem_causes(result):
    assert (result.verdict, type(result.cause)) == (Verdict.ERROR, RunsInvalid)
    return {type(problem.fault) for problem in result.problems}


def judged_slos(measurement, *texts):
    return judge_slos(measurement, list(map(parse_slo, texts)), SETTINGS)


def verdicts(results):
    return {result.metric: result.verdict for result in results}


def test_several_slos_give_one_result_each(side):
    results = judged_slos(side(), "ttft_p50 <= 60ms", "error_rate == 0", "ttft_p50 <= 40ms")
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.PASS, Verdict.FAIL]


def test_seeds_that_a_comparison_repeats_prove_no_slo(make_run, make_measurement):
    def run(seed):
        return make_run([make_record(i, intended_ms=100 * i, ttft_ms=50 + seed) for i in range(20)], seed=seed)

    fresh, again = make_measurement(*map(run, range(9))), make_measurement(*map(run, [0, 4, 8] * 3))
    (result,) = judged_slos(fresh, "ttft_p50 <= 58ms")
    assert result.verdict is Verdict.PASS
    (result,) = judged_slos(again, "ttft_p50 <= 58ms")
    assert result.verdict is Verdict.INCONCLUSIVE
    assert (result.numbers["runs"], result.numbers["seeds"]) == (9, 3)


def test_a_lower_limit_on_hits_does_not_excuse_an_old_cache(side):
    """Cached prompts of an earlier run make TTFT shorter, and raise the hit rate, so its lower limit cannot fail."""
    stale = side(counters={"prompt_tokens": 160.0, "prompt_tokens_cached": 150.0}, expected_hit_rate=0.3)
    for texts in (["ttft_p50 <= 60ms"], ["ttft_p50 <= 60ms", "prefix_cache_hit_rate >= 20%"]):
        (result,) = judged_slos(stale, *texts)
        assert problem_causes(result) == {CacheNotEmpty}
    results = judged_slos(stale, "ttft_p50 <= 60ms", "prefix_cache_hit_rate <= 31%")
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.FAIL]


def test_an_invalid_run_is_one_error_that_counts_the_reasons(side):
    broken = side(restarted="its counter fell", clock_gap_ms=9e9)
    (result,) = judged_slos(broken, "ttft_p50 <= 60ms", "error_rate == 0")
    assert problem_causes(result) == {ServerRestarted, LoadProcessSuspended}
    assert [(problem.run, problem.seed) for problem in result.problems] == [
        (1, 0), (1, 0), (2, 1), (2, 1), (3, 2), (3, 2)]
    assert result.metric == "validity"
    assert "run 1 (seed 0)" in reason_text(result)
    assert "And 4 more problems like these." in reason_text(result)  # 3 runs with two reasons each, two are shown


@pytest.mark.parametrize("slo", ["slo_attainment(largest_stall <= 10s) >= 90%", "goodput(largest_stall <= 10s) >= 1/s"])
def test_coalesced_chunks_invalidate_goodput_with_stall_limit(side, slo):
    (result,) = judged_slos(side(coalesced_chunks=3), slo)
    assert problem_causes(result) == {ChunksCoalesced}
    (result,) = judged_slos(side(coalesced_chunks=3), slo.replace("largest_stall", "ttft"))
    assert result.verdict is Verdict.PASS


def claim(a, b, text="ttft_p50(b) / ttft_p50(a) >= 2", causes=(), allow=None, **how):
    """The results of a claim whose sides ran on different server starts."""
    b = replace(b, runs=tuple(replace(run, start_id=2) for run in b.runs))
    return claim_judge(text, causes, allow or {}, SETTINGS, **how).both(a, b, 0.99)


def test_claim_reports_ratio_and_guard_metric_without_loss(side):
    results = claim(side(ttft_ms=10), side(ttft_ms=100))
    assert verdicts(results) == {
        "ttft_p50(b) / ttft_p50(a)": Verdict.PASS,
        "tpot_mean(a) / tpot_mean(b)": Verdict.PASS,
    }
    assert (results[1].numbers["no_loss_proven"], results[1].cause) == (True, None)


def test_claim_between_equal_sides_fails(side):
    assert verdicts(claim(side(ttft_ms=100), side(ttft_ms=100)))["ttft_p50(b) / ttft_p50(a)"] is Verdict.FAIL


def test_guard_metric_loss_fails_without_sufficient_price(side):
    a, b = side(ttft_ms=10, itl_ms=20), side(ttft_ms=100, itl_ms=10)
    assert verdicts(claim(a, b))["tpot_mean(a) / tpot_mean(b)"] is Verdict.FAIL
    assert verdicts(claim(a, b, allow={"tpot_mean": 3.0}))["tpot_mean(a) / tpot_mean(b)"] is Verdict.PASS
    assert verdicts(claim(a, b, allow={"tpot_mean": 1.2}))["tpot_mean(a) / tpot_mean(b)"] is Verdict.FAIL


@pytest.mark.parametrize(
    ("itl_ms", "how", "verdict"),
    [
        (10.4, {}, Verdict.PASS),  # 4 %: a screen can exclude no 5 %
        (10.8, {}, Verdict.INCONCLUSIVE),
        (10.8, {"kind": "cpu"}, Verdict.PASS),  # 15 % there
        (10.8, {"margins": {"tpot_mean": Margins(0.02, 0.10)}}, Verdict.PASS),
        (10.8, {"start_sd": {"tpot_mean": 0.001}}, Verdict.FAIL),
        (12.0, {}, Verdict.FAIL),
        (12.0, {"kind": "cpu"}, Verdict.INCONCLUSIVE),  # starts differ by more there
    ],
)
def test_guard_verdict_depends_on_margins_and_between_start_sd(side, itl_ms, how, verdict):
    guard = claim(side(ttft_ms=10, itl_ms=itl_ms), side(ttft_ms=100, itl_ms=10), **how)[1]
    assert guard.verdict is verdict
    assert guard.numbers["guard"] == "tpot_mean"
    assert ('allow={"tpot_mean": …}' in reason_text(guard)) == (verdict is not Verdict.PASS)
    assert guard.numbers.get("no_loss_proven", False) == (verdict is Verdict.PASS)


def test_start_sd_given_by_the_test_is_named_as_its_source(side):
    results = claim(side(ttft_ms=10), side(ttft_ms=100), start_sd={"ttft_p50": 0.4})
    assert (results[0].numbers["start_sd"], results[0].numbers["start_sd_source"]) == (0.4, "the test's own")
    assert "default" in results[1].numbers["start_sd_source"]


def test_price_of_throughput_is_applied_to_inverse_ratio(side):
    results = claim(side(ttft_ms=10), side(ttft_ms=100), allow={"output_throughput": 2.0})
    assert "output_throughput(b) / output_throughput(a)" in verdicts(results)


def test_claim_with_correct_ratio_fails_if_mechanism_is_missing(side):
    counters = {"prompt_tokens_cached": 0.0}
    a, b = side(ttft_ms=10, counters=counters), side(ttft_ms=100, counters=counters)
    results = claim(a, b, causes=["prefix_cache_hit_rate(a) >= 60%"])
    assert results[0].verdict is Verdict.FAIL
    assert results[1].verdict is Verdict.PASS


def test_guard_metric_without_values_is_omitted(side):
    results = claim(side(ttft_ms=10, chunks=1), side(ttft_ms=100, chunks=1))  # one token has no tpot
    assert list(verdicts(results)) == ["ttft_p50(b) / ttft_p50(a)"]


@pytest.mark.parametrize("allow", [{}, {"tpot_mean": 1.2}])
def test_unstreamed_answers_make_guarded_claim_an_error(side, allow):
    (result,) = claim(side(ttft_ms=10, itl_ms=0.0), side(ttft_ms=100), allow=allow)
    assert problem_causes(result) == {AnswersNotStreamed}
    problem = result.problems[0]
    assert (problem.side, problem.run, problem.seed) == ("A", 1, 0)
    assert (problem.fault.answers, problem.fault.of_answers) == (20, 20)


def test_a_guard_that_one_side_cannot_show_is_an_error(side):
    results = claim(side(ttft_ms=10, chunks=1), side(ttft_ms=100))
    assert verdicts(results)["tpot_mean(a) / tpot_mean(b)"] is Verdict.ERROR


def test_invalid_side_of_claim_is_named(side):
    (result,) = claim(side(), side(restarted="its counter fell"))
    assert problem_causes(result) == {ServerRestarted}
    assert {problem.side for problem in result.problems} == {"B"}
    assert "B, run 1" in reason_text(result)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("ttft_p50(a) <= 3ms", ()), "A claim is a ratio"),
        (("ttft_p50(b) / ttft_p50(a) >= 2", ("ttft_p50(b) / ttft_p50(a) >= 2",)), "is a ratio. A mechanism"),
        (("ttft_p50(b) / ttft_p50(a) >= 2", (), {"ttft_p51": 2.0}), "there is no metric"),
        (("ttft_p50(b) / ttft_p50(a) >= 2", (), {"ttft_p99": 0.5}), "at least 1"),
        (("ttft_p50(b) / ttft_p50(a) >= 2", (), {"ttft_p99": "2x"}), "at least 1"),
        (("ttft_p50(b) / ttft_p50(a) >= 2", (), {"ttft_p99": float("nan")}), "at least 1"),
        (("ttft_p50(b) / ttft_p50(a) >= 2", (), {"goodput": 2.0}), "cannot be a price"),
        (("ttft_p50(b) / ttft_p50(a) >= 2", (), {}, {"itl_p99": 0.1}), "the claim judges: tpot_mean, ttft_p50"),
        (("ttft_p50(b) / ttft_p50(a) >= 2", (), {}, {"ttft_p50": "5%"}), "Write 0.05 for 5 %"),
        (("ttft_p50(b) / ttft_p50(a) >= 2", (), {}, {"ttft_p50": -0.1}), "a share above 0"),
    ],
)
def test_malformed_claim_is_refused_before_server_start(arguments, complaint):
    text, causes, allow, start_sd = (*arguments, {}, {})[:4]
    with pytest.raises(SloError, match=complaint):
        claim_judge(text, causes, allow, SETTINGS, start_sd=start_sd)


def test_mechanism_check_on_one_side_does_not_relax_validity_of_other_side(make_run, make_measurement, side):
    """A server that sheds load has short latencies: here every second request of A failed."""
    shed = make_measurement(*(
        make_run([make_record(i, intended_ms=100 * i, ttft_ms=50, outcome=Outcome.RESET if i % 2 else Outcome.OK)
                  for i in range(20)], seed=seed, counters=False)
        for seed in range(3)
    ))
    slow = side(ttft_ms=500.0)
    (result,) = claim(shed, slow, causes=["error_rate(b) == 0"])
    assert problem_causes(result) == {RequestsFailed}
    problem = result.problems[0]
    assert (problem.side, problem.run, problem.fault.answers, problem.fault.of_answers) == ("A", 1, 10, 20)
    results = claim(shed, slow, causes=["error_rate(a) == 0"])
    assert verdicts(results)["error_rate(a)"] is Verdict.FAIL


def test_guard_uses_median_if_failed_requests_make_mean_infinite(make_run, make_measurement):
    def made(ttft_ms, itl_ms, failed):
        return make_measurement(*(
            make_run([make_record(i, intended_ms=100 * i, ttft_ms=ttft_ms, itl_ms=itl_ms,
                                  outcome=Outcome.TIMEOUT if i in failed else Outcome.OK) for i in range(20)],
                     seed=seed, counters=False) for seed in range(3)))

    judge = claim_judge("ttft_p50(b) / ttft_p50(a) >= 3", ["error_rate(a) <= 20%"], {}, SETTINGS, kind="h200")
    same = judge.both(made(20, 10, {3, 4}), made(100, 10, ()), 0.99)
    assert verdicts(same)["tpot_p50(a) / tpot_p50(b)"] is Verdict.PASS
    assert same[-1].subject == "tpot_p50(a) / tpot_p50(b) <= 1.05"
    slower = judge.both(made(20, 15, {3, 4}), made(100, 10, ()), 0.99)
    assert verdicts(slower)["tpot_p50(a) / tpot_p50(b)"] is Verdict.FAIL
