"""The example's Grafana dashboard asks for what the example's sink writes."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from pytest_llmperf.results.measurement import Measurement, Run, TestResult
from pytest_llmperf.testing.records import make_record

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "metric_and_sink" / "llmperf_influx"
LINE = re.compile(r"(?P<measurement>\w+),(?P<tags>(?:\\.|[^ ])+) (?P<fields>[^ ]+)(?: (?P<time_ns>\d+))?")
STARTED = "2026-01-02T03:04:05+00:00"


@pytest.fixture
def sink():
    spec = importlib.util.spec_from_file_location("example_sink", EXAMPLE / "sink.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.INFLUX


@pytest.fixture
def written(sink, tmp_path):
    """A line of the sink: measurement, tags, fields and time."""
    (tmp_path / "session.json").write_text('{"host": "aaaa"}')
    records = tuple(make_record(i, intended_ms=i, ttft_ms=50, itl_ms=[8, 9, 10]) for i in range(3))
    run = Run(0, 1, records, started_at=STARTED)
    conditions = {"hardware": "emulated h200", "engine.version": "0.33.0"}
    test = TestResult("t.py::test_x[a, b=c]", True, None, (Measurement("e", "w", conditions, (run,)),), (), tmp_path)
    (line,) = sink.files([test])[""].decode().splitlines()
    return LINE.fullmatch(line)


def queries():
    board = json.loads((EXAMPLE.parent / "dashboard.json").read_text(encoding="utf-8"))
    return [target["query"] for panel in board["panels"] for target in panel["targets"]] + [
        variable["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]


def keys(text):
    return {pair.partition("=")[0] for pair in re.split(r"(?<!\\),", text)}


def test_each_query_of_the_dashboard_names_measurement_tags_and_fields_that_the_sink_writes(written):
    tags, fields = keys(written["tags"]), keys(written["fields"])
    assert len(queries()) >= 7
    for query in queries():
        assert re.search(r'FROM "(\w+)"', query)[1] == written["measurement"]
        named = set(re.findall(r'"(\w+)"', query)) - {written["measurement"]}
        assert named <= tags | fields, query
        for group in re.findall(r"GROUP BY (.*)", query):
            assert set(re.findall(r'"(\w+)"', group)) <= tags
        for compared in re.findall(r'"(\w+)" =~', query):
            assert compared in tags


def test_sink_escapes_tags_and_writes_the_start_of_the_run(written):
    assert r"test=t.py::test_x[a\,\ b\=c]" in written["tags"]
    assert r"kind=emulated\ h200" in written["tags"]
    assert "host=aaaa" in written["tags"]
    assert written["time_ns"] == "1767323045000000000"


def test_value_without_a_number_is_left_out(sink):
    run = Run.of_values(0, 1, {"itl_p50": 8.0, "ttft_p50": float("inf"), "tpot_mean": None})
    test = TestResult("t.py::test", True, None, (Measurement("e", "w", {}, (run,)),), ())
    assert sink.files([test])[""].decode() == "llmperf,test=t.py::test,verdict=REPORTED,run=0 itl_p50=8.0\n"
