"""Other tools can read the exported files. A failed export leaves no partial file."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_benchmark.stats import Stats

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.metrics import measure
from pytest_llmperf.report.export import export
from pytest_llmperf.report.export.benchmark import stats
from pytest_llmperf.results.measurement import Run
from pytest_llmperf.results.reader import read_run
from pytest_llmperf.results.writer import write_test

TEST = "tests/test_a.py::test_x[h200]"


@pytest.fixture
def tests(tmp_path, measurement):
    write_test(tmp_path / "run", TEST, [measurement], [CheckResult("x", Verdict.PASS)])
    return read_run(tmp_path / "run")


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12))
def test_statistics_are_pytest_benchmarks_own(values):
    theirs = Stats()
    for value in values:
        theirs.update(value)
    ours, expected = stats(values), theirs.as_dict()
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        if "outliers" not in name and "15iqr" not in name:  # on the very edge rounding decides
            assert ours[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_outliers_are_counted_as_pytest_benchmark_does():
    values = [1.0, 1.1, 0.9, 1.05, 9.0, 1.02, 0.97]
    theirs = Stats()
    for value in values:
        theirs.update(value)
    ours = stats(values)
    assert {name: ours[name] for name in ("outliers", "ld15iqr", "hd15iqr")} == {
        "outliers": theirs.outliers, "ld15iqr": theirs.ld15iqr, "hd15iqr": theirs.hd15iqr}  # fmt: skip


def test_pytest_benchmark_compares_two_exports(tests, tmp_path):
    for name in ("old", "new"):
        export(tests, "pytest-benchmark", tmp_path / f"{name}.json")
    command = [Path(sys.executable).with_name("pytest-benchmark"), "compare", "old.json", "new.json"]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert "test_x[h200] ttft_p50 (old)" in completed.stdout


def test_latencies_are_seconds_and_a_run_is_a_round(tests, tmp_path, measurement):
    (path,) = export(tests, "pytest-benchmark", tmp_path / "deep/er/b.json")
    content = json.loads(path.read_text())
    ttft = next(benchmark for benchmark in content["benchmarks"] if benchmark["fullname"].endswith("ttft_p50"))
    assert ttft["stats"]["data"] == [value / 1000 for value in measurement.values("ttft_p50")]
    assert ttft["extra_info"]["verdict"] == "PASS"
    assert content["commit_info"]["id"] == "unknown"


def test_exported_commit_is_read_from_session_file(tests, tmp_path):
    (tmp_path / "run/session.json").write_text('{"commit": "abc", "dirty": true}')
    (path,) = export(tests, "pytest-benchmark", tmp_path / "b.json")
    commit = json.loads(path.read_text())["commit_info"]
    assert (commit["id"], commit["dirty"]) == ("abc", True)


def test_vllm_has_a_file_for_each_measurement(tests, tmp_path, measurement):
    (path,) = export(tests, "vllm", tmp_path / "out")
    assert path.parent == tmp_path / "out"
    exported, expected = json.loads(path.read_text()), measurement.to_vllm_json()
    assert exported.keys() == expected.keys()
    assert exported["mean_ttft_ms"] == pytest.approx(expected["mean_ttft_ms"])
    assert exported["errors"] == ["", "", "", "reset"]


@pytest.mark.parametrize(("form", "read"), [("csv", pd.read_csv), ("parquet", pd.read_parquet)])
def test_a_table_has_a_row_for_each_request(tests, tmp_path, measurement, form, read):
    (path,) = export(tests, form, tmp_path / "r")
    frame = read(io.BytesIO(path.read_bytes()))
    assert list(frame["test"]) == [TEST] * 4
    assert list(frame["ttft_ms"].dropna()) == pytest.approx(list(measurement.to_pandas()["ttft_ms"].dropna()))
    assert list(frame["outcome"]) == ["ok", "ok", "ok", "reset"]


@pytest.mark.parametrize("form", ["vllm", "parquet", "csv"])
def test_max_rate_search_without_requests_is_exported(tmp_path, measurement, form):
    search = replace(measurement, conditions={**measurement.conditions, "search": "max_rate(…)"},
                     runs=(Run(0, 1, (), {"max_rate": 8.0}),), metrics=(measure((), {"max_rate": 8.0}),))
    write_test(tmp_path / "run", TEST, [search, measurement], [])
    (path,) = export(read_run(tmp_path / "run"), form, tmp_path / "out")
    assert path.stat().st_size


def test_benchmarks_are_named_alike_whatever_rates_a_search_tried(tmp_path, measurement):
    def names(*rates):
        def under(**conditions):
            return replace(measurement, conditions={**measurement.conditions, **conditions})

        tried = [under(tried_rate=rate) for rate in rates]
        write_test(tmp_path / "run", TEST, [under(search="max_rate(…)"), *tried, measurement], [])
        (path,) = export(read_run(tmp_path / "run"), "pytest-benchmark", tmp_path / "b.json")
        return [benchmark["fullname"] for benchmark in json.loads(path.read_text())["benchmarks"]]

    assert names("16/s") == names("16/s", "32/s", "24/s") == names()


def test_two_claims_of_a_test_have_four_sides(tmp_path, measurement):
    sides = [replace(measurement, side=side) for side in "abab"]
    write_test(tmp_path / "run", TEST, sides, [])
    tests = read_run(tmp_path / "run")
    assert [path.name.split(".")[-2] for path in export(tests, "vllm", tmp_path / "v")] == ["a1", "b2", "a3", "b4"]
    (table,) = export(tests, "csv", tmp_path / "r.csv")
    assert list(pd.read_csv(table)["measurement"].unique()) == ["a1", "b2", "a3", "b4"]
    (benchmarks,) = export(tests, "pytest-benchmark", tmp_path / "b.json")
    names = [benchmark["fullname"] for benchmark in json.loads(benchmarks.read_text())["benchmarks"]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("form", ["pytest-benchmark", "vllm", "parquet", "csv"])
def test_export_without_measurements_is_refused_and_writes_no_file(tmp_path, form):
    write_test(tmp_path / "run", TEST, [], [], complete=False, error="died")
    with pytest.raises(UsageError, match="no measurements to export"):
        export(read_run(tmp_path / "run"), form, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["vllm", "parquet", "csv"])
def test_corrupt_requests_file_is_refused_and_writes_no_export(tests, tmp_path, form):
    tests[0].measurements[0].runs[1].requests.write_bytes(b"no")
    with pytest.raises(BaselineError, match="no file of requests"):
        export(tests, form, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("out", "suggested"), [(".", "requests.csv"), ("", "requests.csv"), ("/", "/requests.csv"),
                                                 ("there", "there/requests.csv")])
def test_export_to_folder_is_refused_with_suggested_file(tests, tmp_path, monkeypatch, out, suggested):
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    earlier_files = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=f"this is a folder. Name a file: --out={suggested}"):
        export(tests, "csv", Path(out))
    assert sorted(tmp_path.rglob("*")) == earlier_files


def test_unwritable_export_path_is_refused(tests, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        export(tests, "csv", tmp_path / "file/x.csv")
