"""The numbers behind the charts: faithful, few, and never NaN."""

import json

import pytest

from pytest_llmperf.model.telemetry import GaugeSample, GpuSample, GpuTrace, gauge_columns
from pytest_llmperf.report.html.charts import BINS, PROBABILITIES, charts, labels
from pytest_llmperf.report.html.series import series_of
from pytest_llmperf.results.measurement import Measurement, Run, TestResult
from pytest_llmperf.results.reader import read_run
from pytest_llmperf.results.requests_file import encode
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.testing.records import make_record


@pytest.fixture
def drawn(tmp_path, measurement_of):
    def draw(*lists_of_records, **fields):
        write_test(tmp_path, "test_x", [measurement_of(*lists_of_records, **fields)], [])
        page_charts = charts(read_run(tmp_path)[0])
        json.dumps(page_charts, allow_nan=False)
        return page_charts

    return draw


def test_chart_quantiles_of_ttft_pool_all_requests(drawn):
    records = [make_record(i, intended_ms=i, ttft_ms=10 + i) for i in range(101)]
    (side,) = drawn(records)["distributions"]["ttft"]
    assert side["n"] == 101
    quantiles = dict(zip(PROBABILITIES, side["pooled"], strict=True))
    assert (quantiles[0], quantiles[0.5], quantiles[0.9], quantiles[1.0]) == (10, 60, 100, 110)


def test_stall_appears_in_largest_gaps_at_correct_time(drawn):
    steady = [make_record(i, intended_ms=10 * i, chunks=100, itl_ms=10) for i in range(20)]
    stalled = make_record(20, intended_ms=0, itl_ms=[10] * 30 + [400] + [10] * 50)  # ends 750 ms after the start
    ((run,),) = [timeline["runs"] for timeline in drawn([*steady, stalled])["timelines"]]
    gaps = run["gaps"]
    assert len(gaps["time_s"]) <= BINS
    worst = gaps["largest"].index(max(gaps["largest"]))
    assert gaps["largest"][worst] == 400
    assert gaps["time_s"][worst] == pytest.approx(0.75, abs=0.01)
    assert max(gaps["median"]) == 10


def test_in_flight_series_counts_concurrent_requests(drawn):
    records = [make_record(i, intended_ms=100 * i, ttft_ms=50, chunks=11, itl_ms=10) for i in range(5)]  # 150 ms each
    ((run,),) = [timeline["runs"] for timeline in drawn(records)["timelines"]]
    assert max(run["in_flight"]["requests"]) == 2
    assert run["in_flight"]["requests"][0] == 1
    assert run["in_flight"]["requests"][-1] == 0


def test_in_flight_series_includes_requests_without_stored_arrivals(tmp_path):
    """Of a large run every second request keeps its arrivals; drawn alone they would be half as many at once."""
    records = [make_record(i, intended_ms=0, ttft_ms=50, chunks=11, itl_ms=10) for i in range(64)]
    (tmp_path / "requests.gz").write_bytes(encode(records, most_arrivals=400))
    run = Run.of_values(0, 1, {}, requests=tmp_path / "requests.gz")
    page_charts = charts(TestResult("test_x", True, None, (Measurement("e", "w", {}, (run,)),), ()))
    assert max(page_charts["timelines"][0]["runs"][0]["in_flight"]["requests"]) == 64
    (side,) = page_charts["distributions"]["ttft"]
    assert (side["n"], side["of"]) == (32, "32 of 64 requests")


def test_distribution_of_all_requests_has_no_partial_label(drawn):
    assert drawn([make_record(0)])["distributions"]["ttft"][0]["of"] == ""


def test_runs_without_served_requests_give_empty_charts(drawn):
    page_charts = drawn([], [make_record(0, chunks=1)])
    (side,) = page_charts["distributions"]["itl"]
    assert (side["n"], side["pooled"]) == (0, [])
    assert page_charts["timelines"][0]["runs"][0]["in_flight"] == {"time_s": [], "requests": []}


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
    rows = series_of(
        {
            "gpu": {"at_ns": [0, 10**9], "device": [0, 0], "sm_clock_mhz": [1980, 345], "memory_clock_mhz": [9, 9],
                    "power_w": [700, None], "memory_used_bytes": [2**30, 2**31], "throttle_reasons": [4, 4]},
            "server": {"at_ns": [0], "running": [3.0], "waiting": [1.0], "kv_usage": [0.5], "swapped": [None]},
        }
    )  # fmt: skip
    assert [row["title"] for row in rows] == [
        "GPU: sm clock, memory clock (dotted), MHz", "GPU: power, W", "GPU: memory used, GiB",
        "server: running, waiting (dotted)", "server: kv usage, share"]  # fmt: skip
    assert rows[1]["lines"] == [{"name": "power", "style": 0, "time_s": [0, 1], "values": [700, None]}]
    assert rows[2]["lines"][0]["values"] == [1, 2]


def test_each_gpu_has_a_separate_line():
    (row,) = series_of({"gpu": {"at_ns": [0, 0, 10**9, 10**9], "device": [0, 3, 0, 3], "power_w": [1, 2, 3, 4]}})
    assert row["title"] == "GPU: power, W"
    assert [(line["name"], line["time_s"], line["values"], line["style"]) for line in row["lines"]] == [
        ("power, GPU 0", [0, 1], [1, 3], 0), ("power, GPU 3", [0, 1], [2, 4], 0)]  # fmt: skip


def test_chart_series_read_gauges_and_gpu_trace_of_run_file():
    trace = GpuTrace((), tuple(GpuSample(at_ns, 0, power_w=300.0) for at_ns in (0, 10**9)))
    gauges = gauge_columns((GaugeSample(0, {"running": 2.0}), GaugeSample(10**9, {"kv_usage": 0.5})))
    rows = series_of({"server": gauges, "gpu": trace.columns()})
    assert [row["title"] for row in rows] == ["server: kv usage, share", "server: running", "GPU: power, W"]


def test_columns_of_another_length_or_without_time_are_left_out():
    assert series_of({"gpu": {"at_ns": [0, 1], "power_w": [1]}, "server": {"running": [1]}}) == []


def test_long_series_are_thinned():
    stamps = [number * 10**6 for number in range(3001)]
    (row,) = series_of({"gpu": {"at_ns": stamps, "power_w": stamps}})
    assert len(row["lines"][0]["values"]) <= 300
