"""The table of every metric: its mean, the interval of the mean, the baseline mean and the change."""

from dataclasses import replace

from pytest_llmperf import Verdict
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.report.metric_rows import every_metric, metric_table
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement, StoredSession
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import formulas_of
from pytest_llmperf.results.measurement import Measurement, Run, TestResult


def stored(**metrics):
    session = StoredSession("s", "2026-01-02", None, "h", None, True, ((0, 1), (1, 1)), metrics)
    return StoredMeasurement({}, (session,), (), formulas_of(metrics))


def runs_of(*metrics):
    return Measurement("e", "w", {}, tuple(Run.of_values(seed, 1, values) for seed, values in enumerate(metrics)))


def cells(line):
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_metric_table_shows_mean_interval_baseline_and_change():
    runs = runs_of({"ttft_p50": 40.0, "error_rate": 0.0}, {"ttft_p50": 44.0, "error_rate": 0.0})
    head, ttft, errors = metric_table(runs, stored(ttft_p50=(40.0, 40.0)))
    assert cells(head) == ["metric", "mean", "90 % CI", "baseline", "change"]
    # log 44/40 = 0.0953, sd 0.0674; t(0.95, 1 df) = 6.314; 6.314 · 0.0674 / √2 = 0.301; 42 · e^±0.301
    assert cells(ttft) == ["ttft_p50", "42 ms", "31.09–56.74 ms", "40 ms", "+5.0 %"]
    assert cells(errors) == ["error_rate", "0 %", "-", "-"]


def test_judged_metric_row_shows_baseline_value_and_change_of_verdict():
    runs = runs_of({"ttft_p50": 40.0}, {"ttft_p50": 44.0})
    judged = CheckResult("baseline ttft_p50", Verdict.PASS, "ttft_p50", Unit.CHANGE, estimate=0.042, before=40.3,
                         after=41.95)
    _, ttft = metric_table(runs, stored(ttft_p50=(40.0, 40.0)), [judged])
    assert cells(ttft)[1] == "41.95 ms"
    assert cells(ttft)[-2:] == ["40.3 ms", "+4.2 %"]


def test_numbers_of_another_formula_are_never_compared():
    older = replace(stored(request_throughput=(2.0,)), formulas={"request_throughput": "request_throughput.1"})
    _, throughput = metric_table(runs_of({"request_throughput": 2.5}), older)
    assert cells(throughput)[-2:] == ["2 requests/s", "another formula"]


def test_metric_table_computes_change_with_failed_as_infinite():
    """A server that dropped its slowest requests is no improvement."""
    run = Run.of_values(0, 1, {"ttft_p50": 40.0, "ttft_mean": 30.0}, {"ttft_p50": 44.0, "ttft_mean": None})
    measured = Measurement("e", "w", {}, (run,))
    rows = [cells(line) for line in metric_table(measured, stored(ttft_p50=(40.0,), ttft_mean=(40.0,)))[1:]]
    assert sorted([row[0], row[1], row[-1]] for row in rows) == [
        ["ttft_mean", "infinite", "infinite"], ["ttft_p50", "44 ms", "+10.0 %"]]


def test_a_metric_that_a_run_misses_is_left_out():
    assert len(metric_table(runs_of({"ttft_p50": 40.0}, {"ttft_p50": None}), None)) == 1


def test_side_without_baseline_comparison_has_no_baseline_column_values():
    class Stored:
        def read(self, test, kind):
            assert kind == "h200"
            return Baseline(test, {"": stored(ttft_p50=(40.0, 40.0))})

    runs = (Run.of_values(0, 1, {"ttft_p50": 400.0}),)
    a, b = (Measurement("vllm('m')", "w", {"hardware": "h200"}, runs, side=side, baseline=compared)
            for side, compared in (("a", ""), ("b", None)))
    test = TestResult("t", True, None, (a, b), ())
    rows = [cells(line) for line in every_metric(test, Stored().read) if "ttft_p50" in line]
    assert [row[-2:] for row in rows] == [["40 ms", "+900.0 %"], ["-", "-"]]


def test_one_run_has_no_interval():
    assert cells(metric_table(runs_of({"ttft_p50": 40.0}), None)[1]) == ["ttft_p50", "40 ms", "-", "-"]
