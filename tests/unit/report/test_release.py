"""Two runs compared: only what is proven counts, and what cannot be compared is unknown, never green."""

from dataclasses import replace

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.judging.baseline_comparison import ComparisonTerms, judge_against_baseline
from pytest_llmperf.metrics.run import CountedBy
from pytest_llmperf.report.release import Trend, compare_runs
from pytest_llmperf.report.text import comparison_text, overview, text_of_test
from pytest_llmperf.results.baseline import StoredMeasurement, StoredSession
from pytest_llmperf.results.check import Stated
from pytest_llmperf.results.conditions import formulas_of
from pytest_llmperf.results.measurement import Measurement, Run, TestResult
from pytest_llmperf.results.sentences import estimate_text
from pytest_llmperf.stats.priors import Margins

CONDITIONS = {"hardware": "h200", "model": "m", "workload": "w", "engine.version": "1", "formulas": "tpot.1 ttft.1"}
NOISE = (1.0, 1.002, 0.998)


def measured(tpot_ms=10.0, ttft_ms=50.0, **fields):
    runs = tuple(
        Run.of_values(seed, 1, {"tpot_mean": tpot_ms * noise, "ttft_p50": ttft_ms * noise, "itl_p99": 30.0})
        for seed, noise in enumerate(NOISE)
    )
    test_fields = {"engine": "vllm('m')", "workload": "w", "conditions": CONDITIONS, "runs": runs}
    return Measurement(**(test_fields | fields))


def ran(*measurements, verdict=Verdict.PASS, name="t.py::test_x", **fields):
    cause = None if verdict is Verdict.PASS else Stated("because")
    check = CheckResult("tpot_mean <= 1s", verdict, "tpot_mean", cause=cause)
    complete, error = fields.get("complete", True), fields.get("error")
    return TestResult(name, complete, error, measurements or (measured(),), (check,))


def compare(before, after, **options):
    (compared,) = compare_runs([before], [after], **options)
    return compared


@pytest.mark.parametrize(
    ("after", "trend"),
    [
        (measured(), Trend.STAYED),
        (measured(tpot_ms=10.05), Trend.STAYED),
        (measured(tpot_ms=11), Trend.WORSE),
        (measured(tpot_ms=9), Trend.BETTER),
        (measured(tpot_ms=10.4), Trend.UNKNOWN),
        (measured(tpot_ms=9, ttft_ms=100), Trend.WORSE),
    ],
)
def test_trend_of_test_follows_trends_of_metrics(after, trend):
    assert compare(ran(), ran(after)).trend is trend


@pytest.mark.parametrize(("values", "trend"), [
    ((None, None), Trend.UNKNOWN), ((0.0, 0.0), Trend.STAYED), ((0.0, 3.0), Trend.UNKNOWN),
    ((None, 0.0), Trend.UNKNOWN),
])
def test_metric_missing_or_zero_in_one_run_has_unknown_trend(values, trend):
    before, after = (measured(primaries=("preemptions",)) for _ in values)
    before, after = (
        side.with_runs([Run.of_values(run.seed, 1, run.metrics.all() | {"preemptions": value}) for run in side.runs])
        for side, value in zip((before, after), values, strict=True)
    )
    assert compare(ran(before), ran(after)).trend is trend


def test_release_comparison_uses_margins_of_later_run():
    wide, narrow = ({"tpot_mean": Margins(share / 2, share)} for share in (0.3, 0.02))
    assert compare(ran(), ran(measured(tpot_ms=11, margins=wide))).trend is Trend.STAYED
    assert compare(ran(measured(margins=wide)), ran(measured(tpot_ms=11))).trend is Trend.WORSE
    assert compare(ran(), ran(measured(ttft_ms=100, margins=wide))).trend is Trend.WORSE
    assert compare(ran(), ran(measured(tpot_ms=10.4, margins=narrow))).trend is Trend.WORSE


def test_diff_and_baseline_verdict_state_equal_change_of_equal_runs():
    before, after = measured(), measured(tpot_ms=11.29)
    session = StoredSession("s", "2026-01-02", None, "host", None, True, tuple((run.seed, 1) for run in before.runs),
                            {"tpot_mean": tuple(before.values("tpot_mean"))})
    after = replace(after, metrics=tuple(replace(run, counted_by=CountedBy.CHUNKS) for run in after.metrics))
    stored = StoredMeasurement({}, (session,), ("tpot_mean",), formulas_of(["tpot_mean"]))
    (verdict,) = judge_against_baseline(after, stored, ComparisonTerms(("tpot_mean",), {}, 1, "h200", "host"), 0)
    (change,) = (change for change in compare(ran(before), ran(after)).changes if change.metric == "tpot_mean")
    assert f"{change.before.removesuffix(' ms')} → {change.after}, {change.change}" == estimate_text(verdict)
    assert estimate_text(verdict) == "10 → 11.29 ms, +12.9 %"


@pytest.mark.parametrize(
    ("before", "after", "trend"),
    [
        (Verdict.PASS, Verdict.FAIL, Trend.WORSE),
        (Verdict.FAIL, Verdict.PASS, Trend.BETTER),
        (Verdict.FAIL, Verdict.FAIL, Trend.STAYED),
        (Verdict.INCONCLUSIVE, Verdict.FAIL, Trend.WORSE),
        (Verdict.NO_BASELINE, Verdict.FAIL, Trend.WORSE),
        (Verdict.PASS, Verdict.INCONCLUSIVE, Trend.UNKNOWN),
        (Verdict.PASS, Verdict.ERROR, Trend.UNKNOWN),
        (Verdict.ERROR, Verdict.PASS, Trend.UNKNOWN),
    ],
)
def test_changed_verdict_determines_trend(before, after, trend):
    compared = compare(ran(verdict=before), ran(verdict=after))
    assert compared.trend is trend
    if after is not Verdict.PASS or before is Verdict.ERROR:
        assert "because" in compared.reason


@pytest.mark.parametrize("before", [Verdict.PASS, Verdict.FAIL])
def test_that_stops_checking_has_unknown_trend(before):
    silent = replace(ran(), checks=())
    compared = compare(ran(verdict=before), silent)
    assert (compared.trend, compared.reason) == (Trend.UNKNOWN, "it checks nothing now")
    assert compare(silent, silent).trend is Trend.STAYED
    assert compare(ran(), replace(ran(measured(tpot_ms=11)), checks=())).trend is Trend.WORSE


def test_an_error_is_no_regression_however_bad_the_numbers():
    compared = compare(ran(), ran(measured(tpot_ms=99), error="The server died.", complete=False))
    assert (compared.trend, compared.changes) == (Trend.UNKNOWN, ())
    assert compared.reason == "ERROR now: The server died."


@pytest.mark.parametrize("name", ["hardware", "model", "workload"])
def test_different_hardware_model_or_workload_is_not_compared(name):
    compared = compare(ran(), ran(measured(tpot_ms=99, conditions=CONDITIONS | {name: "other"})))
    assert compared.trend is Trend.UNKNOWN
    assert compared.reason == f"{name} differs: {CONDITIONS[name]} before, other now"


def test_different_workloads_are_named_by_the_arguments_that_differ():
    other = measured(workload="random(input=520)", conditions=CONDITIONS | {"workload": "396ea6"})
    compared = compare(ran(measured(workload="random(input=512)")), ran(other))
    assert compared.reason == "workload differs: input=512 before, input=520 now"


def test_different_treatment_or_cpu_is_not_compared_but_missing_condition_is():
    for was, now, text in (({}, {"treatment": "keeps l1"}, "absent before, keeps l1 now"),
                           ({"cpu_cores": "64"}, {"cpu_cores": "2"}, "64 before, 2 now")):
        compared = compare(ran(measured(conditions=CONDITIONS | was)), ran(measured(conditions=CONDITIONS | now)))
        assert (compared.trend, compared.reason) == (Trend.UNKNOWN, f"{next(iter(now))} differs: {text}")
    assert compare(ran(), ran(measured(conditions=CONDITIONS | {"cpu_cores": "2"}))).trend is Trend.STAYED


def test_changed_formula_excludes_only_affected_metric():
    compared = compare(ran(), ran(measured(ttft_ms=99, conditions=CONDITIONS | {"formulas": "new.1 tpot.1 ttft.2"})))
    assert compared.trend is Trend.UNKNOWN
    assert {change.metric: change.change for change in compared.changes} == {
        "ttft_p50": "another formula", "tpot_mean": "+0.0 %"
    }  # fmt: skip
    added = compare(ran(), ran(measured(conditions=CONDITIONS | {"formulas": "new.1 tpot.1 ttft.1"})))
    assert added.trend is Trend.STAYED


def test_engine_version_change_is_compared_and_listed():
    compared = compare(ran(), ran(measured(tpot_ms=11, conditions=CONDITIONS | {"engine.version": "2"})))
    assert compared.trend is Trend.WORSE
    assert compared.differing_conditions == (("engine.version", "1", "2"),)


def test_changed_build_is_listed_before_changed_conditions():
    changed = {"connections": "fresh", "flags": '{"max_num_seqs": 4}', "engine.max_num_seqs": "4",
               "engine.dtype": "float16", "driver": "590"}
    compared = compare(ran(), ran(measured(conditions=CONDITIONS | changed)))
    assert [name for name, _, _ in compared.differing_conditions] == [
        "driver", "engine.dtype", "connections", "engine.max_num_seqs", "flags"]


def test_the_reference_of_a_claim_does_not_count():
    sides = [measured(side="a"), measured(side="b")]
    assert compare(ran(*sides), ran(sides[0], measured(tpot_ms=99, side="b"))).trend is Trend.STAYED


def test_a_claim_that_ended_after_one_side_is_compared():
    both = ran(measured(side="a"), measured(side="b"))
    compared = compare(both, ran(measured(side="a", tpot_ms=99), verdict=Verdict.FAIL))
    assert compared.trend is Trend.WORSE
    assert compare(ran(measured(), measured()), ran(measured())).reason == "2 measurements before, 1 now"


def test_verdicts_decide_trend_if_claim_ended_after_reference_side():
    """Its mechanism did not work there, and A was never started."""
    both = [measured(side="a"), measured(side="b")]
    passed, failed = ran(*both), ran(measured(side="b"), verdict=Verdict.FAIL)
    assert [compare(passed, failed).trend, compare(failed, passed).trend] == [Trend.WORSE, Trend.BETTER]
    assert compare(failed, ran(*both, verdict=Verdict.FAIL)).trend is Trend.STAYED
    two = compare(ran(*both, *both), ran(measured(side="b", tpot_ms=99), *both, verdict=Verdict.FAIL))
    assert [change.change for change in two.changes] == ["+0.0 %", "+0.0 %"]


def test_sides_without_a_counterpart_of_one_machine_are_not_compared(message):
    both, alone = ran(measured(side="a"), measured(side="b")), ran(measured(side="a"), verdict=Verdict.FAIL)
    failed = ran(measured(side="b", conditions=CONDITIONS | {"hardware": "a100"}), verdict=Verdict.FAIL)
    message(compare(both, failed).reason)
    message(compare(alone, failed).reason)


def searched(rate, *tried, primaries=("max_rate",)):
    """A search with the given result, and a measurement for each rate that the search tried."""
    runs = tuple(Run.of_values(seed, 1, {"max_rate": rate * noise}) for seed, noise in enumerate(NOISE))
    fields = CONDITIONS | {"search": "max_rate(ttft_p99 <= 1s)"}
    search = measured(runs=runs, conditions=fields, primaries=primaries)
    at_rates = (measured(tpot_ms=point, conditions=CONDITIONS | {"workload": f"{point}", "tried_rate": f"{point}/s"})
                for point in tried)
    return ran(search, *at_rates)


def test_max_rate_search_is_compared_by_found_rate():
    assert compare(searched(22.6, 16, 32, 24), searched(8, 16, 8)).trend is Trend.WORSE
    (change,) = compare(searched(22.6, 16, 32, 24), searched(22.6, 16, 20)).changes
    assert (change.metric, change.change) == ("max_rate", "+0.0 %")


def test_max_rate_search_without_baseline_is_compared_by_found_rate():
    compared = compare(searched(22.6, 16, primaries=()), searched(8, 16, primaries=()))
    assert (compared.trend, [change.metric for change in compared.changes]) == (Trend.WORSE, ["max_rate"])


def test_other_seeds_and_missing_metrics_cannot_tell():
    shifted = measured()
    shifted = shifted.with_runs([replace(run, seed=run.seed + 100) for run in shifted.runs])
    lone = replace(measured(), primaries=("spec_acceptance_rate",))
    assert compare(ran(), ran(replace(shifted, primaries=("tpot_mean",)))).trend is Trend.UNKNOWN  # equal to the digit
    assert compare(ran(), ran(measured(tpot_ms=11).with_runs(shifted.runs[:2]))).trend is Trend.UNKNOWN
    assert compare(ran(lone), ran(lone)).changes[0].after == "–"


def test_added_and_removed_tests_are_listed_as_new_and_gone(message):
    compared = compare_runs([ran(name="t::old")], [ran(name="t::new")])
    assert [(compared_test.test, compared_test.trend) for compared_test in compared] == [
        ("t::new", Trend.NEW),
        ("t::old", Trend.GONE),
    ]
    message(compared[1].reason)


def test_release_comparison_lists_all_metrics_but_judges_only_primary_metrics():
    worse_tail = measured().with_runs(
        [Run.of_values(run.seed, 1, run.metrics.all() | {"itl_p99": 90.0}) for run in measured().runs])  # fmt: skip
    compared = compare(ran(), ran(worse_tail), others=True)
    assert {change.metric: change.primary for change in compared.changes} == {
        "ttft_p50": True, "tpot_mean": True, "itl_p99": False}  # fmt: skip
    assert compared.trend is Trend.STAYED


def test_comparison_text_shows_trend_verdicts_and_changes(message):
    compared = compare(ran(), ran(measured(tpot_ms=11), verdict=Verdict.FAIL))
    message(comparison_text(compared))
    tests = [ran(), ran(verdict=Verdict.FAIL, name="t::bad")]
    message(overview(tests))
    assert "run 3: seed 2, start 1" in text_of_test(tests[0])
    assert "engine.version" in text_of_test(tests[0])
