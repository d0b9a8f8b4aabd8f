"""The report shows the requests and the hit rate of each replica of a service."""

from pytest_llmperf.report.html import write_report
from pytest_llmperf.report.metric_rows import replica_rows
from pytest_llmperf.report.text import text_of_test
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.results.writer import write_test

HALF = {"requests_finished": 10.0, "prompt_tokens": 100.0, "prompt_tokens_cached": 50.0}
NONE = {"requests_finished": 10.0, "prompt_tokens": 100.0, "prompt_tokens_cached": 0.0, "queue_time_s_sum": 0.5,
        "queue_time_count": 10.0, "preemptions": 3.0}


def test_hit_rate_of_each_replica_is_over_all_runs(make_run, make_measurement):
    runs = [make_run(seed=0, replicas={"a:1": HALF, "b:1": NONE}), make_run(seed=1, replicas={"a:1": NONE, "b:1": {}})]
    measurement = make_measurement(*runs)
    assert replica_rows(measurement) == [
        ("replica", "requests", "prompt tokens", "hit rate", "mean queue time", "preemptions"),
        ("a:1", "20", "200", "25 %", "50 ms", "3"), ("b:1", "10", "100", "0 %", "50 ms", "3")]
    assert "a:1" in text_of_test(TestResult("t", complete=True, error=None, measurements=(measurement,), checks=()))


def test_server_alone_has_no_replicas_in_the_report(make_run, make_measurement):
    assert replica_rows(make_measurement(make_run())) == []


def test_html_report_has_a_table_of_replicas(make_run, make_measurement, tmp_path):
    measurement = make_measurement(make_run(replicas={"a:1": HALF, "b:1": NONE}))
    write_test(tmp_path, "t", [measurement], [])
    page = write_report([tmp_path], lambda _test, _kind: None, tmp_path).read_text()
    assert "<code>a:1</code>" in page
    assert ">50 %<" in page
