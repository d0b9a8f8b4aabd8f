"""`perf.compare` compares measurements of one workload: ratios with a limit are judged, other ratios are reported."""

from dataclasses import replace

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import SloError, SpecError
from pytest_llmperf.judging.compared_sides import judge_ratios, ratio_is_smaller
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.results.causes.comparisons import PairsTooFew
from pytest_llmperf.results.causes.runs import ServerRestarted
from pytest_llmperf.results.check import worst
from pytest_llmperf.stats.interval import Interval
from pytest_llmperf.testing.records import make_record

SETTINGS = Settings()


@pytest.fixture
def side(make_run, make_measurement):
    """Runs with these latencies; seeds differ by 1 %."""

    def side(ttft_ms, *, seeds=(0, 1, 2), start_id=1, workload="w", hardware="h200", **fields):
        def records(seed):
            return [make_record(i, intended_ms=100 * i, ttft_ms=ttft_ms * (1 + 0.01 * seed)) for i in range(20)]

        runs = [make_run(records(seed), seed=seed, start_id=start_id, **fields) for seed in seeds]
        return make_measurement(*runs, conditions={"hardware": hardware, "engine": "vllm", "model": "m",
                                                    "workload": workload})

    return side


def compare(*texts, **sides):
    return judge_ratios(texts, sides, SETTINGS)


@pytest.mark.parametrize(("limit", "verdict"), [(">= 1.15", "PASS"), (">= 1.25", "FAIL"), ("", "REPORTED")])
def test_comparison_with_limit_is_judged_and_without_limit_is_reported(side, limit, verdict):
    (result,) = compare(f"ttft_p50(disk) / ttft_p50(memory) {limit}".strip(), disk=side(60), memory=side(50))
    assert result.verdict.value == verdict
    assert result.metric == "ttft_p50(disk) / ttft_p50(memory)"
    assert result.estimate == pytest.approx(1.2)
    # On one server start and seed by seed, what seeds differ by cancels.
    assert (result.interval.low, result.interval.high) == (pytest.approx(1.2, abs=0.005),) * 2
    assert result.interval.level_percent == pytest.approx(98)
    assert result.numbers["pairs"] == 3
    assert "start_sd" not in result.numbers


def test_sides_on_separate_starts_include_between_start_sd(side):
    text = "ttft_p50(b) / ttft_p50(a) >= 1.15"
    (result,) = compare(text, a=side(50), b=side(60, start_id=2))
    assert result.verdict is Verdict.INCONCLUSIVE
    facts = result.numbers
    assert (facts["pairs"], facts["starts_a"], facts["starts_b"], facts["start_sd"]) == (3, 1, 1, pytest.approx(0.1))


@pytest.mark.parametrize(("hardware", "sd"), [("h200", 0.03), ("cpu", 0.15)])
def test_starts_differ_by_more_on_a_cpu(side, hardware, sd):
    text = "request_throughput(b) / request_throughput(a)"
    (result,) = compare(text, a=side(50, hardware=hardware), b=side(50, start_id=2, hardware=hardware))
    assert result.numbers["start_sd"] == pytest.approx(sd)
    assert result.numbers["start_sd_source"].startswith("default")


def test_comparison_without_seed_pairs_is_inconclusive_for_too_few_pairs(side):
    (result,) = compare("ttft_p50(b) / ttft_p50(a) >= 1", a=side(50), b=side(50))
    assert result.verdict is Verdict.PASS  # exactly 1
    noisy = side(50, seeds=(0, 1))
    other = side(50.2, seeds=(5, 1, 0))
    (result,) = compare("ttft_p50(b) / ttft_p50(a) >= 1.004", a=noisy, b=other)
    assert result.numbers["pairs"] == 2
    first, second = side(50.2, seeds=(0,)), side(51, seeds=(1,))
    uneven = replace(first, runs=first.runs + second.runs, metrics=first.metrics + second.metrics)
    (result,) = compare("ttft_p50(b) / ttft_p50(a) >= 1.004", a=noisy, b=uneven)
    assert (result.verdict, type(result.cause)) == (Verdict.INCONCLUSIVE, PairsTooFew)


def test_reported_ratio_does_not_change_test_verdict(side):
    results = compare("ttft_p50(b) / ttft_p50(a)", "ttft_p50(b) / ttft_p50(a) >= 9", a=side(50), b=side(60))
    assert worst(results[:1]) is Verdict.PASS
    assert worst(results) is Verdict.FAIL


def test_comparison_judges_ratios_of_three_named_sides(side):
    results = compare("ttft_p50(b) / ttft_p50(a) >= 1", "ttft_p50(c) / ttft_p50(b) >= 1", a=side(50), b=side(60),
                      c=side(55))  # fmt: skip
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.FAIL]


def test_invalid_runs_of_one_side_make_comparison_an_error(side):
    (result,) = compare("ttft_p50(b) / ttft_p50(a)", a=side(50), b=side(60, restarted="its counter fell"))
    assert result.verdict is Verdict.ERROR
    assert [type(problem.fault) for problem in result.problems] == [ServerRestarted] * len(result.problems)
    assert (result.problems[0].side, result.problems[0].run) == ("b", 1)


@pytest.mark.parametrize(("text", "complaint"), [
    ("ttft_p50(memroy) / ttft_p50(disk)", "no other side is named 'memroy'; did you mean memory"),
    ("ttft_p50(disk) / ttft_p50(disk)", "no other side is named 'disk'"),
    ("ttft_p50(disk)", "and the other side"),
    ("ttft_p50(disk) / tpot_mean(memory)", "did you mean ttft_p50"),
    ("ttft_p50(disk) / ttft_p50(memory) == 1", "never exactly equal"),
    ("error_rate(disk) / error_rate(memory)", "can be 0"),
])  # fmt: skip
def test_unreadable_comparison_is_refused_with_reason(side, text, complaint):
    with pytest.raises(SloError, match=complaint):
        compare(text, disk=side(60), memory=side(50))


def test_other_workloads_and_single_runs_are_refused(side):
    with pytest.raises(SpecError, match="Measure the same"):
        compare("ttft_p50(b) / ttft_p50(a)", a=side(50), b=side(60, workload="other"))
    with pytest.raises(SpecError, match="share 1 seed"):
        compare("ttft_p50(b) / ttft_p50(a)", a=side(50, seeds=(0, 1)), b=side(60, seeds=(1, 2)))


def test_repeated_seeds_of_extended_run_make_one_pair_each(side):
    extended, plain = side(50, seeds=(0, 1, 2, 0, 1)), side(60)
    (result,) = compare("ttft_p50(b) / ttft_p50(a) >= 1.15", a=extended, b=plain)
    assert result.verdict is Verdict.PASS
    assert result.numbers["pairs"] == 3


@pytest.mark.parametrize(("smaller", "larger", "verdict"), [
    ((2.0, 1.8, 2.2), (4.0, 3.6, 4.4), Verdict.PASS),
    ((3.6, 3.2, 4.0), (4.0, 3.6, 4.4), Verdict.INCONCLUSIVE),
    ((4.4, 4.0, 4.9), (4.0, 3.6, 4.4), Verdict.INCONCLUSIVE),
    ((8.0, 7.2, 8.8), (4.0, 3.6, 4.4), Verdict.FAIL),
])
def test_noise_of_both_ratios_decides_the_order(smaller, larger, verdict):
    """Against the point estimate of the larger ratio the second pair would be a PASS: 3.6 is below 4."""
    ratios = [CheckResult("r", Verdict.REPORTED, "r", Unit.RATIO, estimate=middle, interval=Interval(low, high, 0.99))
              for middle, low, high in (smaller, larger)]
    assert ratio_is_smaller("gain", *ratios).verdict is verdict


def test_ratio_of_an_invalid_run_is_not_judged():
    invalid = CheckResult("r", Verdict.ERROR, "r")
    assert ratio_is_smaller("gain", invalid, invalid).verdict is Verdict.INCONCLUSIVE
