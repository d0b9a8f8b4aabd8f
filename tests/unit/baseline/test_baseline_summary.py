"""How a plan reads."""

from pytest_llmperf.baseline.plan import plan
from pytest_llmperf.baseline.update_plan import summary
from pytest_llmperf.results.baseline import Baseline

SUITE = "suites/test_serving.py::"


def test_summary_shows_one_line_per_measurement(make, message):
    tests = [
        make.result(make.fresh(tpot_mean=6.5, output_throughput=1234.0), test=f"{SUITE}test_new[h200]"),
        make.result(make.fresh(tpot_mean=103.0, ttft_p50=9.0, primaries=("tpot_mean",)), test=f"{SUITE}test_changed"),
        make.result(make.fresh(name="hot", tpot_mean=99.0), test=f"{SUITE}test_named"),
        make.result(make.fresh(tpot_mean=6.5), test=f"{SUITE}test_failed", verdicts=[("FAIL", "tpot_mean")]),
        make.result(make.fresh(prefix_cache_hit_rate=0.5), test=f"{SUITE}test_share"),
    ]
    named = {"hot": make.history(100.0), "cold": make.history(1.0)}
    existing = {
        "h200/serving/test_changed.json": make.baseline(make.history(100.0, 100.0), test=f"{SUITE}test_changed"),
        "h200/serving/test_named.json": Baseline(f"{SUITE}test_named", named),
        "h200/serving/test_gone.json": make.baseline(make.history(1.0), test=f"{SUITE}test_gone"),
        "h200/serving/test_skipped.json": make.baseline(make.history(1.0), test=f"{SUITE}test_skipped"),
    }
    collected = [test.test for test in tests] + [f"{SUITE}test_skipped"]
    message(summary(plan(tests, existing, make.terms(), "all", collected)))


def test_empty_plan_shows_no_work_to_do(make):
    assert summary(plan([], {}, make.terms(), "all")) == "baselines: nothing to do"


def test_summary_shows_accepted_change_with_reason(make, message):
    test = make.result(make.fresh(tpot_mean=150.0))
    message(summary(plan([test], {"h200/serving/test_it.json": make.baseline(make.history(100.0))},
                         make.terms(accept="new sampler"), "all")))  # fmt: skip


def test_numbers_of_another_formula_are_not_compared(make, message):
    stored = make.stored(make.session(0, anchor=True, tpot_mean=100.0), tpot_mean="tpot.0/mean")
    existing = {"h200/serving/test_it.json": make.baseline(stored)}
    message(summary(plan([make.result(make.fresh(tpot_mean=150.0))], existing, make.terms(accept="x"), "all")))


def test_a_metric_that_was_zero_has_no_percentage(make, message):
    stored = make.history(0.0, metric="prefix_cache_hit_rate")
    test = make.result(make.fresh(prefix_cache_hit_rate=0.5))
    message(summary(plan([test], {"h200/serving/test_it.json": make.baseline(stored)}, make.terms(accept="x"), "all")))
