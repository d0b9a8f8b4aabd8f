"""Metrics in groups beside baseline and change."""

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.report.html.metric_table import ComparedSide, metric_table
from pytest_llmperf.results.baseline import StoredMeasurement, StoredSession
from pytest_llmperf.results.conditions import formulas_of
from pytest_llmperf.results.measurement import Measurement, Run


def side(values, name="", judged=None, stored=None, checks=()):
    runs = tuple(Run.of_values(seed, 1, values, judged) for seed in range(2))
    return ComparedSide(Measurement("e", "w", {}, runs, side=name), stored, checks)


def stored(values, *, formulas=None):
    session = StoredSession("s", "2026-01-01", None, "h", None, True, ((0, 1),), {k: (v,) for k, v in values.items()})
    return StoredMeasurement({}, (session,), (), formulas_of(values) if formulas is None else formulas)


def cells(table):
    return {row.name: row.cells[0] for group in table.groups for row in group.rows}


def test_metrics_are_in_groups_and_rare_statistics_apart():
    table = metric_table([side({"ttft_p50": 1.0, "ttft_p75": 2.0, "request_throughput": 3.0, "from_the_future": 4.0})])
    assert [(group.title, [row.name for row in group.main]) for group in table.groups] == [
        ("Time to first token (TTFT)", ["ttft_p50"]),
        ("Throughput and errors", ["request_throughput"]),
        ("Other", ["from_the_future"]),
    ]
    assert [row.name for row in table.groups[0].rows] == ["ttft_p50", "ttft_p75"]
    assert table.groups[0].rows[0].runs == (("1 ms", "1 ms"),)


def test_metrics_that_are_zero_in_every_run_are_only_named():
    table = metric_table([side({"preemptions": 0.0, "ttft_p50": 1.0}), side({"preemptions": 0.0})])
    assert table.zeros == ("preemptions",)
    assert list(cells(table)) == ["ttft_p50"]


def test_gaps_per_token_are_left_out_where_each_chunk_has_one_token():
    gaps = {"itl_p50": 5.0, "itl_per_token_p50": 5.0}
    table = metric_table([side(gaps)])
    assert (list(cells(table)), table.one_token) == (["itl_p50"], True)
    table = metric_table([side(gaps), side(gaps | {"itl_per_token_p50": 2.5})])
    assert (list(cells(table)), table.one_token) == (["itl_p50", "itl_per_token_p50"], False)


def test_baseline_and_change_stand_beside_the_mean():
    now = {"ttft_p50": 12.0, "output_throughput": 90.0, "ttft_p99": 5.0}
    cell_texts = cells(metric_table([side(now, stored=stored({"ttft_p50": 10.0, "output_throughput": 100.0}))]))
    assert (cell_texts["ttft_p50"].mean, cell_texts["ttft_p50"].baseline, cell_texts["ttft_p50"].change) == (
        "12 ms", "10 ms", "+20.0 %")
    assert cell_texts["output_throughput"].change == "-10.0 %"
    assert (cell_texts["ttft_p99"].baseline, cell_texts["ttft_p99"].change) == ("", "")


def test_value_of_another_formula_has_no_change():
    stored_values = stored({"ttft_p50": 10.0}, formulas={"ttft_p50": "ttft.0"})
    cell_texts = cells(metric_table([side({"ttft_p50": 12.0}, stored=stored_values)]))
    assert cell_texts["ttft_p50"].change == "another formula"


def test_failed_requests_make_the_mean_infinite():
    measured = side({"ttft_max": 12.0}, judged={"ttft_max": float("inf")}, stored=stored({"ttft_max": 9.0}))
    cell_texts = cells(metric_table([measured]))
    assert (cell_texts["ttft_max"].mean, cell_texts["ttft_max"].change) == ("infinite", "infinite")


def test_judged_metric_has_the_values_of_the_check():
    check = CheckResult("baseline ttft_p50", Verdict.PASS, "ttft_p50", Unit.CHANGE, estimate=0.129, before=12.97,
                        after=14.64)
    cell_texts = cells(metric_table([side({"ttft_p50": 14.8}, stored=stored({"ttft_p50": 12.9}), checks=(check,))]))
    assert (cell_texts["ttft_p50"].mean, cell_texts["ttft_p50"].baseline, cell_texts["ttft_p50"].change) == (
        "14.64 ms", "12.97 ms", "+12.9 %")


def test_two_sides_have_the_ratio_of_b_to_a():
    table = metric_table([side({"ttft_p50": 10.0}, "a"), side({"ttft_p50": 25.0}, "b")])
    assert table.groups[0].rows[0].ratio == "2.5×"
