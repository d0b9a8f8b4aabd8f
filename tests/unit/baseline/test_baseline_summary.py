"""How a plan reads."""

from pytest_llmperf.baseline.plan import plan
from pytest_llmperf.baseline.summary import summary
from pytest_llmperf.results.baseline import Baseline

SUITE = "suites/test_serving.py::"


def test_summary_shows_one_line_per_measurement(make):
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
    assert summary(plan(tests, existing, make.terms(), "all", collected)) == """\
baselines: 2 created, 2 changed, 1 kept, 1 refused, 1 orphaned
  changed   h200/serving/test_changed.json  tpot_mean 100 → 101 ms (+1.0 %); 3 sessions
  refused   h200/serving/test_failed.json  FAIL: check tpot_mean
  orphaned  h200/serving/test_gone.json  its test no longer exists: the file is removed
  kept      h200/serving/test_named.json [cold]  this session did not measure it; remove it from the file where the \
name is gone
  changed   h200/serving/test_named.json [hot]  tpot_mean 100 → 99.5 ms (-0.5 %); 2 sessions
  created   h200/serving/test_new.json  output_throughput 1234 tokens/s, tpot_mean 6.5 ms; 1 session
  created   h200/serving/test_share.json  prefix_cache_hit_rate 50 %; 1 session
  kept      1 of tests that this session did not update
pytest --llmperf-accept "REASON", or llmperf baselines take --accept "REASON", stores a refused session with its \
reason. An incomplete session cannot be stored: measure it again."""


def test_empty_plan_shows_no_work_to_do(make):
    assert summary(plan([], {}, make.terms(), "all")) == "baselines: nothing to do"


def test_summary_shows_accepted_change_with_reason(make):
    test = make.result(make.fresh(tpot_mean=150.0))
    text = summary(plan([test], {"h200/serving/test_it.json": make.baseline(make.history(100.0))},
                        make.terms(accept="new sampler"), "all"))  # fmt: skip
    assert "tpot_mean 100 → 150 ms (+50.0 %); 1 session; accepted (new sampler): tpot_mean is an outlier" in text
    assert "drops out: 20260100T000000Z-000000" in text
    assert "-accept" not in text


def test_numbers_of_another_formula_are_not_compared(make):
    stored = make.stored(make.session(0, anchor=True, tpot_mean=100.0), tpot_mean="tpot.0/mean")
    existing = {"h200/serving/test_it.json": make.baseline(stored)}
    text = summary(plan([make.result(make.fresh(tpot_mean=150.0))], existing, make.terms(accept="x"), "all"))
    assert "test_it.json  tpot_mean 150 ms; 1 session; accepted (x): other conditions: formula of tpot_mean" in text


def test_a_metric_that_was_zero_has_no_percentage(make):
    stored = make.history(0.0, metric="prefix_cache_hit_rate")
    test = make.result(make.fresh(prefix_cache_hit_rate=0.5))
    text = summary(plan([test], {"h200/serving/test_it.json": make.baseline(stored)}, make.terms(accept="x"), "all"))
    assert "prefix_cache_hit_rate 0 → 50 %; 1 session" in text
