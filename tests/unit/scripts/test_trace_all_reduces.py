"""The table of all-reduces by number of GPUs; how a trace is read is tested with `telemetry.torch_trace`."""

import pytest

from pytest_llmperf.telemetry.torch_trace import Breakdown


@pytest.fixture
def script(load_script):
    return load_script("trace_all_reduces")


def test_all_reduce_row_shows_smallest_and_largest_wait_of_ranks(script):
    def rank(all_reduce_us, median_us):
        return Breakdown("gpu", 100.0, 10.0, 40.0 - all_reduce_us + 40.0, all_reduce_us, 0.0, 64, all_reduce_us,
                         median_us, "cross_device_reduce_1stage")

    line = script.row(2, 8, 3.777, [rank(40.0, 9.0), rank(20.0, 6.0)])
    assert line == "| 2 | 8 | 3.78 | 20.0%–40.0% | 6.0–9.0 | 10.0% | 64 | `cross_device_reduce_1stage` |"


def test_server_without_all_reduces_has_row_without_shares(script):
    assert "no all-reduce ran" in script.row(1, 1, 5.0, [])
    assert "no all-reduce ran" in script.row(1, 1, 5.0, [Breakdown("gpu", 100.0, 10.0, 40.0, 0.0, 0.0)])
