"""The numbers behind the charts: faithful, few, and never NaN."""

import re
from math import isfinite

import pytest

from pytest_llmperf.model.telemetry import GaugeSample, GpuSample, GpuTrace, gauge_columns
from pytest_llmperf.report.html.figures import BINS, GAPS, PROBABILITIES, figures, quantiles, telemetry_lines, timeline
from pytest_llmperf.report.html.plot import Line
from pytest_llmperf.report.html.words import labels
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.requests_file import Requests, decode, encode
from pytest_llmperf.testing.records import make_record


def run_of(tmp_path, records, **limit):
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gz"
    path.write_bytes(encode(records, **limit))
    return Run.of_values(0, 1, {}, requests=path)


def rows_of(run):
    rows = timeline(run, decode(run.requests), "A", 0)
    assert all(isfinite(value) for lines in rows.values() for line in lines for value in (*line.x, *line.y))
    return rows


def page_figures(*runs):
    return figures([Measurement("e", "w", {}, runs)], ["A"])


def test_chart_quantiles_are_those_of_the_sample():
    shown = dict(zip(PROBABILITIES, quantiles(range(10, 111)), strict=True))
    assert (shown[0], shown[0.5], shown[0.9], shown[1.0]) == (10, 60, 100, 110)


def test_distribution_pools_all_requests_and_draws_each_run_thin(tmp_path):
    runs = [run_of(tmp_path, [make_record(i, intended_ms=i, ttft_ms=10 + i) for i in range(101)]) for _ in range(2)]
    page = page_figures(*runs)
    assert "A (n = 202)" in page
    assert "share of values up to x; thin: each run" in page


def test_stall_appears_in_largest_gaps_at_correct_time(tmp_path):
    steady = [make_record(i, intended_ms=10 * i, chunks=100, itl_ms=10) for i in range(20)]
    stalled = make_record(20, intended_ms=0, itl_ms=[10] * 30 + [400] + [10] * 50)  # ends 750 ms after the start
    largest, median = rows_of(run_of(tmp_path, [*steady, stalled]))[GAPS]
    assert len(largest.x) <= BINS
    worst = largest.y.index(max(largest.y))
    assert largest.y[worst] == 400
    assert largest.x[worst] == pytest.approx(0.75, abs=0.01)
    assert max(median.y) == 10


def test_gaps_have_a_logarithmic_axis_and_requests_in_flight_a_linear_one(tmp_path):
    stalled = make_record(0, intended_ms=0, itl_ms=[10] * 30 + [400])
    page = page_figures(run_of(tmp_path, [stalled, make_record(1, intended_ms=100)]))
    scales = re.findall(r'aria-label="([^"]+)" data-x="[^"]*" data-y="\S+ \S+ (log|linear) ', page)
    assert {(GAPS, "log"), ("requests in flight", "linear")} <= set(scales)


def test_in_flight_series_counts_concurrent_requests(tmp_path):
    records = [make_record(i, intended_ms=100 * i, ttft_ms=50, chunks=11, itl_ms=10) for i in range(5)]  # 150 ms each
    (line,) = rows_of(run_of(tmp_path, records))["requests in flight"]
    assert (max(line.y), line.y[0], line.y[-1]) == (2, 1, 0)


def test_in_flight_series_includes_requests_without_stored_arrivals(tmp_path):
    """Of a large run every second request keeps its arrivals; drawn alone they would be half as many at once."""
    records = [make_record(i, intended_ms=0, ttft_ms=50, chunks=11, itl_ms=10) for i in range(64)]
    run = run_of(tmp_path, records, most_arrivals=400)
    assert max(rows_of(run)["requests in flight"][0].y) == 64
    assert "A (n = 32, of 32 of 64 requests)" in page_figures(run)


def test_runs_without_served_requests_have_no_charts(tmp_path):
    assert timeline(Run.of_values(0, 1, {}), Requests(), "A", 0) == {GAPS: [], "requests in flight": []}
    assert page_figures(Run.of_values(0, 1, {}), run_of(tmp_path, [])) == ""


@pytest.mark.parametrize(("sides", "lines"), [(3, 6), (4, 4)])
def test_more_than_three_sides_draw_only_the_largest_gaps(tmp_path, sides, lines):
    run = run_of(tmp_path, [make_record(0, chunks=100, itl_ms=10)])
    page = figures([Measurement("e", "w", {}, (run,))] * sides, "ABCD"[:sides])
    assert page.count("largest</span>") + page.count("median</span>") == lines


def _sides(*sides):
    return [Measurement("e", "w", {}, (), side=side) for side in sides]


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        (("a", "b"), ["A", "B"]),
        (("",), ["measured"]),
        (("", ""), ["1", "2"]),
        (("a", "b", "a", "b"), ["A1", "B2", "A3", "B4"]),
    ],
)
def test_measurements_are_labelled_by_side_and_number(sides, expected):
    assert labels(_sides(*sides)) == expected


def test_sampled_columns_become_rows_by_unit():
    rows = telemetry_lines(
        {
            "gpu": {"at_ns": [0, 10**9], "device": [0, 0], "sm_clock_mhz": [1980, 345], "memory_clock_mhz": [9, 9],
                    "power_w": [700, None], "memory_used_bytes": [2**30, 2**31], "throttle_reasons": [4, 4]},
            "server": {"at_ns": [0], "running": [3.0], "waiting": [1.0], "kv_usage": [0.5], "swapped": [None]},
        }, "A", 1
    )  # fmt: skip
    assert list(rows) == [
        "GPU: sm clock, memory clock (dotted), MHz", "GPU: power, W", "GPU: memory used, GiB",
        "server: running, waiting (dotted)", "server: kv usage, share"]  # fmt: skip
    assert rows["GPU: power, W"] == [Line("A power", [0, 1], [700, None], 1, 0)]
    assert rows["GPU: memory used, GiB"][0].y == [1, 2]


def test_each_gpu_has_a_separate_line():
    columns = {"at_ns": [0, 0, 10**9, 10**9], "device": [0, 3, 0, 3], "power_w": [1, 2, 3, 4]}
    assert telemetry_lines({"gpu": columns}, "A", 0) == {
        "GPU: power, W": [Line("A power, GPU 0", [0, 1], [1, 3]), Line("A power, GPU 3", [0, 1], [2, 4])]}


def test_chart_series_read_gauges_and_gpu_trace_of_run_file():
    trace = GpuTrace((), tuple(GpuSample(at_ns, 0, power_w=300.0) for at_ns in (0, 10**9)))
    gauges = gauge_columns((GaugeSample(0, {"running": 2.0}), GaugeSample(10**9, {"kv_usage": 0.5})))
    rows = telemetry_lines({"server": gauges, "gpu": trace.columns()}, "A", 0)
    assert list(rows) == ["server: kv usage, share", "server: running", "GPU: power, W"]


def test_columns_of_another_length_or_without_time_are_left_out():
    assert telemetry_lines({"gpu": {"at_ns": [0, 1], "power_w": [1]}, "server": {"running": [1]}}, "A", 0) == {}


def test_long_series_are_thinned():
    stamps = [number * 10**6 for number in range(3001)]
    ((line,),) = telemetry_lines({"gpu": {"at_ns": stamps, "power_w": stamps}}, "A", 0).values()
    assert len(line.x) == len(line.y) <= 300
