"""The metrics page: sums, labels, differences, restarts."""

import time
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pytest_llmperf.errors import EngineError, MetricUnavailable
from pytest_llmperf.telemetry.prometheus import START_TIME, CounterLog, deltas, parse

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


def test_totals_are_summed_over_all_labels():
    scrape = parse(PAGE)
    assert scrape.total("vllm:request_success_total") == 10
    assert scrape.by_label("vllm:request_success_total", "engine") == {"0": 5, "1": 5}
    assert scrape.by_label("vllm:request_success_total", "rank") == {}
    assert scrape.labels("vllm:cache_config_info")["block_size"] == "16"


def test_missing_or_nan_value_is_unknown():
    scrape = parse(PAGE)
    assert scrape.total("vllm:nothing") is None
    assert scrape.total("vllm:kv_cache_usage_perc") is None  # NaN
    assert scrape.labels("vllm:nothing") == {}


@pytest.mark.parametrize("text", [
    "<!DOCTYPE html><html></html>", '{"detail": "no"}', "a b c", "\x00", "a 1 2 3", 'a{b="1} 2', "a{b=1} 2", "1a 2",
    "a 0x10", '{"a"} x', 'a{"b"} 1', "a {count:12,sum:3}",
])
def test_page_of_other_format_is_refused(text):
    with pytest.raises(MetricUnavailable, match=r"/metrics is not Prometheus text"):
        parse(text)


ESCAPED = 'a{path="C:\\\\tmp",said="\\"yes\\", {he}, said\\n"} 1'
ODD = [
    ESCAPED, "a 1", "a  1.5e-3 ", "a{} 2", "a{b=\"1\",} 3", "a {b=\"1\"} 4", 'a{ b = "1" , c = "2" } 5', "a +Inf",
    "a{b=\"}\"} 7 1395066363000", "a 7 1520879607.789",
    '{"http.server.duration"} 3', '{"a:b",c="1"} 4', 'a{"c.d"="1"} 5',
    "a:b_total 8\r", "# HELP a \\ text", "# a comment", "   ", "",
]


@pytest.mark.parametrize("text", [PAGE, *ODD], ids=lambda text: text.strip()[:20])
def test_parsed_page_equals_result_of_prometheus_parser(text):
    theirs = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    ours = parse(text).samples
    assert [(sample.name, dict(sample.labels), sample.value) for sample in ours] == [
        (sample.name, sample.labels, pytest.approx(sample.value, nan_ok=True)) for sample in theirs
    ]


@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]*", fullmatch=True), st.text(max_size=12), max_size=4))
def test_any_label_is_read_back(labels):
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    shown = ",".join(f'{name}="{text.translate(escapes)}"' for name, text in labels.items())
    (sample,) = parse(f"a{{{shown}}} 1").samples
    assert sample.labels == labels


READ = 'c{rank="0"} 5'


@pytest.mark.parametrize("page", [
    f'{READ} # {{trace_id="a}} b"}} 1.0 1520879607.789\n# EOF\n',
    f"{READ} 1520879607.789\n# EOF\n",
    f"\ufeff{READ}  \r\n",
    f'{READ}\n{{"http.server.duration",code="200"}} 3\n',
    f"{READ}\nnot a metric at all\n",
    f"my-metric 3\n{READ}",
    f"{READ}\nlatency {{count:12,sum:100.0,schema:0,zero_threshold:0.1}}\n",
    '{"c", rank="0"} 5',
    'c{"service.name"="x"} 5',
    f'{READ}\nc_created{{rank="0"}} 1.7e9\n{{"c_bucket",le="1"}} 3\n',
])
def test_one_foreign_line_leaves_the_other_lines_readable(page):
    assert parse(page).total("c") == parse(page).counter("c") == 5


@pytest.mark.parametrize("line", [
    'c{rank="1"} NaN', 'c{rank="1"} +Inf', 'c{rank="1"} 0x10', 'c{rank="1" 5', '{"c",rank="1"} x',
])
def test_rank_without_a_number_makes_the_sum_unknown(line):
    scrape = parse(f"{READ}\n{line}\n")
    assert not isfinite(scrape.counter("c"))
    assert scrape.total("c") is scrape.largest("c") is None
    assert not isfinite(scrape.by_label("c", "rank").get("1", scrape.by_label("c", "rank")["0"]))


def test_counter_delta_is_unknown_if_counter_disappears():
    before, after = {"a": 1.0, "gone": 2.0}, {"a": 4.0, "new": 5.0}
    assert deltas(before, after) == {"a": 3.0, "gone": None, "new": 5.0}


def test_an_unreadable_page_makes_all_unknown():
    assert deltas({}, {"a": 4.0}) == {}
    assert deltas({"a": 4.0}, {}) == {}


def restart_of(*readings):
    log = CounterLog()
    for reading in readings:
        log.take(reading)
    return log.restart()


def test_restart_shows_in_counter_or_start_time():
    assert restart_of({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 2.0}) is None
    assert restart_of({"a": 1.0}, {}) is None
    assert restart_of({"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 9.0}) == "its counter a fell from 2 to 1"
    restart_text = restart_of({"a": 1.0, START_TIME: 1764054321.25}, {"a": 5.0, START_TIME: 1764054399.5})
    assert restart_text == "its start time changed from 1764054321.25 to 1764054399.5"


def test_counter_that_falls_and_recovers_is_named_once():
    log = CounterLog()
    for value in (500.0, 0.0, 600.0):
        log.take({"prompt_tokens": value})
    assert log.restart() == "its counter prompt_tokens fell from 500 to 0"
    assert log.restart() is None


def test_counter_absent_from_one_reading_is_compared_with_the_one_before():
    assert restart_of({"a": 5.0}, {}, {"a": 3.0}) == "its counter a fell from 5 to 3"


def test_difference_of_counters_may_fall_between_two_readings():
    assert restart_of({"external_cache_queries": 9.0}, {"external_cache_queries": 8.0}) is None


def test_start_time_is_no_difference():
    assert START_TIME not in deltas({"a": 1.0, START_TIME: 10.0}, {"a": 5.0, START_TIME: 11.0})


def test_page_of_more_samples_than_any_server_needs_is_refused():
    assert len(parse("a 1\n" * 100_000).samples) == 100_000
    with pytest.raises(EngineError, match="more than 100,000 samples"):
        parse("a 1\n" * 100_001)


@pytest.mark.parametrize(
    "line",
    ["a" + " " * 60_000, "a{" + " " * 60_000, 'a{b="' + "\\" * 60_001, "a 1" + " " * 60_000 + "x",
     "a{" + 'b="c" , ' * 7000 + "=", "a b c " * 10_000],
    ids=["spaces", "labels", "escapes", "timestamp", "pairs", "words"],
)
def test_malformed_line_is_refused_in_linear_time(line):
    began_s = time.process_time()
    with pytest.raises(MetricUnavailable, match="is not Prometheus text"):
        parse(line)
    assert time.process_time() - began_s < 1.0


def test_line_without_an_end_is_refused():
    with pytest.raises(EngineError, match="a line of more than 65,536 characters"):
        parse('a{b="' + "x" * 70_000 + '"} 1')
