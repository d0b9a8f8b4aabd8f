"""The metrics page: sums, labels, differences, restarts."""

import pytest

from pytest_llmperf.errors import MetricUnavailable
from pytest_llmperf.telemetry.prometheus import START_TIME, deltas, parse, restarted

PAGE = """
# HELP vllm:request_success Count of finished requests.
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="stop"} 2.0
vllm:request_success_total{engine="0",finished_reason="length"} 3.0
vllm:request_success_total{engine="1",finished_reason="length"} 5.0
vllm:request_success_created{engine="0"} 1.7e+09
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} NaN
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0
"""


def test_sums_run_over_all_labels():
    scrape = parse(PAGE)
    assert scrape.total("vllm:request_success_total") == 10
    assert scrape.by_label("vllm:request_success_total", "engine") == {"0": 5, "1": 5}
    assert scrape.by_label("vllm:request_success_total", "rank") == {}
    assert scrape.labels("vllm:cache_config_info")["block_size"] == "16"


def test_what_is_not_there_or_no_number_is_unknown():
    scrape = parse(PAGE)
    assert scrape.total("vllm:nothing") is None
    assert scrape.total("vllm:kv_cache_usage_perc") is None  # NaN
    assert scrape.labels("vllm:nothing") == {}


@pytest.mark.parametrize("text", ["<!DOCTYPE html><html></html>", '{"detail": "no"}', "a b c", "\x00"])
def test_another_format_is_named(text):
    with pytest.raises(MetricUnavailable, match=r"/metrics is not Prometheus text"):
        parse(text)


def test_differences():
    before, after = {"a": 1.0, "gone": 2.0}, {"a": 4.0, "new": 5.0}
    assert deltas(before, after) == {"a": 3.0, "gone": None, "new": 5.0}


def test_an_unreadable_page_makes_all_unknown():
    assert deltas({}, {"a": 4.0}) == {}
    assert deltas({"a": 4.0}, {}) == {}


def test_a_restart_shows_in_its_counters_or_its_start_time():
    assert not restarted({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 2.0})
    assert not restarted({"a": 1.0}, {})
    assert restarted({"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 9.0})
    assert restarted({"a": 1.0, START_TIME: 10.0}, {"a": 5.0, START_TIME: 11.0})
    assert START_TIME not in deltas({"a": 1.0, START_TIME: 10.0}, {"a": 5.0, START_TIME: 11.0})
