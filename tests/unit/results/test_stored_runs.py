"""A run folder read back: what was written is what is read, and what cannot be believed is refused in a sentence."""

import json
from dataclasses import replace
from math import isinf

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.results.reader import choose, read_run
from pytest_llmperf.results.requests_file import encode
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.testing.records import make_record

TEST = "tests/test_a.py::test_x[h200]"
PASSED = CheckResult("ttft_p50 <= 1s", Verdict.PASS, "ttft_p50", Unit.MS, Comparison.AT_MOST, 1000, 50)
FAILED = CheckResult.stated("itl_p99 <= 1s", Verdict.FAIL, "slow", metric="itl_p99")

RUNS_TOO_FEW = {"runs": 3, "deciding_runs": 8, "deciding_sessions": 3, "no_further_runs": "tired"}


@pytest.fixture
def written(tmp_path, measurement):
    return write_test(tmp_path, TEST, [measurement], [PASSED])


def test_stored_run_equals_written_measurement(tmp_path, written, measurement):
    (test,) = read_run(tmp_path)
    assert (test.test, test.complete, test.error, test.folder) == (TEST, True, None, tmp_path)
    assert test.checks == (PASSED,)
    (stored,) = test.measurements
    assert (stored.engine, stored.workload, stored.conditions) == (
        measurement.engine, measurement.workload, measurement.conditions)  # fmt: skip
    assert [metrics.all() for metrics in stored.metrics] == [metrics.all() for metrics in measurement.metrics]
    for name in ("ttft_p50", "ttft_mean", "output_throughput"):  # one of the requests failed
        assert stored.values_with_failures(name) == measurement.values_with_failures(name)
    assert isinf(stored.value_with_failures("ttft_mean"))
    assert not any(run.records.loaded for run in stored.runs)  # no value needs the requests
    assert stored.value_with_failures("prefix_cache_hit_rate") is None


def test_number_of_looks_survives_the_run_file(tmp_path, measurement):
    write_test(tmp_path, TEST, [replace(measurement, looks=3)], [])
    assert read_run(tmp_path)[0].measurements[0].looks == 3


def test_run_file_without_a_look_is_refused(tmp_path, written):
    written.write_text(written.read_text().replace('"looks": 1', '"looks": 0'))
    with pytest.raises(BaselineError, match="0 is no number of looks"):
        read_run(tmp_path)


def test_measurement_is_restored_from_stored_requests(tmp_path, written, measurement):
    back = read_run(tmp_path)[0].measurements[0]
    recomputed = [measure(run.records, run.counters).all() for run in back.runs]
    assert recomputed == [metrics.all() for metrics in measurement.metrics]
    before, after = measurement.to_vllm_json(), back.to_vllm_json()
    different = {name for name in before if json.dumps(before[name]) != json.dumps(after[name])}
    assert different <= {"start_times", "itls", "ttfts", "latencies"}  # the clock begins elsewhere, rounding with it
    assert after["ttfts"] == pytest.approx(before["ttfts"])


def test_requests_are_written_once_and_stay_when_the_test_is_written_again(tmp_path, written, measurement):
    files = sorted((tmp_path / "requests").iterdir())
    stamps = [path.stat().st_mtime_ns for path in files]
    write_test(tmp_path, TEST, [measurement], [FAILED])
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "requests").iterdir())] == stamps
    assert len(files) == 2


def test_equal_runs_of_two_measurements_have_separate_request_files(tmp_path, measurement_of):
    slow, fast = (measurement_of([make_record(0, ttft_ms=ttft_ms)]) for ttft_ms in (90, 10))
    write_test(tmp_path, TEST, [slow, fast], [])
    stored_runs = [measurement.runs[0] for measurement in read_run(tmp_path)[0].measurements]
    values = [measure(run.records).value("ttft_p50") for run in stored_runs]
    assert values == [90, 10]


@pytest.mark.parametrize(
    ("fields", "checks", "verdict", "reason"),
    [
        ({}, [PASSED], Verdict.PASS, ""),
        ({}, [], Verdict.REPORTED, ""),
        ({}, [PASSED, FAILED], Verdict.FAIL, "itl_p99: slow"),
        ({"complete": False}, [PASSED], Verdict.ERROR, "did not reach its end"),
        ({"complete": False, "error": "It died.\ncommand: x"}, [PASSED], Verdict.ERROR, "It died."),
    ],
)
def test_stored_test_verdict_includes_checks_and_errors(tmp_path, fields, checks, verdict, reason):
    write_test(tmp_path, TEST, [], checks, **fields)
    (test,) = read_run(tmp_path)
    assert test.verdict is verdict
    assert reason in test.reason


def test_stored_telemetry_contains_only_numeric_columns(tmp_path, written):
    content = json.loads(written.read_text())
    content["measurements"][0]["runs"][0]["gpu"] = {
        "at_ns": [0, 1], "power_w": [300, None], "name": "H200", "reasons": ["a", "b"]}  # fmt: skip
    written.write_text(json.dumps(content))
    first, second = read_run(tmp_path)[0].measurements[0].runs
    assert first.telemetry == {"gpu": {"at_ns": [0.0, 1.0], "power_w": [300.0, None]}}
    assert second.telemetry == {}


def test_requests_that_are_gone_or_kept_in_part_are_no_measurement(tmp_path, written):
    run = read_run(tmp_path)[0].measurements[0].runs[0]
    run.requests.write_bytes(encode([make_record(i) for i in range(9)], most_arrivals=20))
    with pytest.raises(UsageError, match="were stored only in part"):
        read_run(tmp_path)[0].measurements[0].to_pandas()
    run.requests.unlink()
    with pytest.raises(UsageError, match="seed 0: the records of the requests were not stored"):
        read_run(tmp_path)[0].measurements[0].to_vllm_json()


def _set(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def _change_check(path, **values):
    (stored_check,) = json.loads(path.read_text())["checks"]
    _set(path, checks=[stored_check | values])


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda path: _set(path, schema=99), r"its schema is 99, and this version reads 1"),
        (lambda path: path.write_text("{}"), r"its schema is None"),
        (lambda path: path.write_text(path.read_text()[:90]), r"no JSON at line"),
        (lambda path: path.write_text("[]"), r"stands where an object belongs"),
        (lambda path: _set(path, checks=[{"subject": "x", "verdict": "GREAT"}]), r"at checks\[0\].verdict: 'GREAT'"),
        (lambda path: _change_check(path, cause="pairs_too_few"), r"at checks\[0\].facts: .* needs the fact 'pairs'"),
        (lambda path: _change_check(path, cause="runs_too_few", facts=RUNS_TOO_FEW), r"at checks\[0\]: .*'tired'"),
        (lambda path: _change_check(path, cause="not_steady"), r"at checks\[0\].cause: 'not_steady' is no cause"),
        (lambda path: _change_check(path, problems=[{"cause": "preemptions", "facts": {}}]),
         r"at checks\[0\].problems\[0\].facts: .* needs the fact 'count'"),
        (lambda path: _set(path, measurements=[{"engine": 3}]), r"at measurements\[0\]: complete, conditions"),
    ],
)
def test_corrupt_run_file_is_refused_with_path_and_cause(tmp_path, written, spoil, complaint):
    spoil(written)
    with pytest.raises(BaselineError, match=complaint) as refused:
        read_run(tmp_path)
    assert str(refused.value).startswith(str(written))


def test_missing_or_foreign_run_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no such run folder"):
        read_run(tmp_path / "gone")
    with pytest.raises(UsageError, match="this is no run folder"):
        read_run(tmp_path)


def test_part_of_test_id_selects_test(tmp_path, written):
    tests = read_run(tmp_path)
    assert choose(tests, "test_x", tmp_path) == tests
    with pytest.raises(UsageError, match=r"no test's id has 'zzz' .* There are: tests/test_a.py::test_x"):
        choose(tests, "zzz", tmp_path)
