"""The DataFrame of requests, and the table of verdicts."""

import math

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.report.table import table
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval


def test_data_frame_has_one_row_per_request(measurement):
    frame = measurement.to_pandas()
    assert len(frame) == 4
    assert list(frame["run"]) == [0, 0, 1, 1]
    assert list(frame["index"]) == [0, 1, 0, 1]
    assert list(frame["intended_ms"]) == [0, 100, 0, 100]  # after the start of its own run
    assert list(frame["outcome"]) == ["ok", "ok", "ok", "reset"]
    assert frame["ttft_ms"][0] == pytest.approx(40)
    assert frame["tpot_ms"][0] == pytest.approx(20)
    assert frame["e2el_ms"][0] == pytest.approx(100)
    assert frame["largest_stall_ms"][0] == pytest.approx(30)
    assert frame["chunks"][0] == 4


def test_a_failed_request_has_a_row_and_no_latency(measurement):
    last = measurement.to_pandas().iloc[3]
    assert math.isnan(last["ttft_ms"])
    assert last["send_delay_ms"] == 0


def test_verdict_table_has_aligned_columns_and_reasons_at_end():
    text = table(
        [
            CheckResult("ttft_p99 <= 1s", Verdict.PASS, "ttft_p99", Unit.MS, Comparison.AT_MOST, 1000, 200,
                        Interval(150, 250, 0.95), facts={"runs": 3}),
            CheckResult.stated("x", Verdict.ERROR, "because"),
        ]
    )
    head, first, second, reason = text.splitlines()
    assert head.split() == ["metric", "limit", "measured", "verdict", "interval", "n"]
    assert [first.index("PASS"), second.index("ERROR")] == [head.index("verdict")] * 2
    assert first.endswith("3 runs on one server start")
    assert second.startswith("x ")  # a check without a metric goes by its own text
    assert reason == "  x: because"
    assert not any(line.endswith(" ") for line in text.splitlines())
