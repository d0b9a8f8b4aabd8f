"""One file per test: whole, valid JSON, and nobody else's."""

import json

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.report.run_folder import file_name, write_test


def test_what_it_holds(tmp_path, measurement):
    result = CheckResult("ttft_p99 <= 1s", Verdict.FAIL, "ttft_p99", reason="slow")
    path = write_test(tmp_path, "tests/test_a.py::test_x", [measurement], [result], complete=False)
    kept = json.loads(path.read_text())
    assert (kept["schema"], kept["test"], kept["complete"]) == (1, "tests/test_a.py::test_x", False)
    assert kept["checks"] == [
        {
            "subject": "ttft_p99 <= 1s", "verdict": "FAIL", "metric": "ttft_p99", "limit": "", "measured": "-",
            "interval": "", "n": "", "reason": "slow",
        }
    ]  # fmt: skip
    (only,) = kept["measurements"]
    assert only["conditions"] == {"engine": "vllm", "model": "m"}
    assert [run["seed"] for run in only["runs"]] == [0, 1]
    assert only["runs"][1]["metrics"]["error_rate"] == 0.5
    assert only["runs"][0]["metrics"]["prefix_cache_hit_rate"] is None
    assert "records" not in only["runs"][0]


def test_the_last_writing_stays_and_nothing_else(tmp_path, measurement):
    write_test(tmp_path, "test", [], [])
    path = write_test(tmp_path, "test", [measurement], [])
    assert list((tmp_path / "tests").iterdir()) == [path]
    assert json.loads(path.read_text())["measurements"]


def test_what_is_no_json_is_never_written(tmp_path, make_measurement):
    with pytest.raises(ValueError, match="JSON"):
        write_test(tmp_path, "test", [make_measurement([], counters={"kv_usage_peak": float("nan")})], [])
    assert not list((tmp_path / "tests").iterdir())


@pytest.mark.parametrize(
    ("one", "other"),
    [("t.py::x[a/b]", "t.py::x[a-b]"), ("t.py::x[é]", "t.py::x[è]"), ("a/b.py::x", "a-b.py::x"), ("[", "]")],
)
def test_two_tests_never_share_a_file(one, other):
    assert file_name(one) != file_name(other)


def test_names_are_readable_and_short_enough():
    name = file_name("tests/perf/test_long.py::test_x[" + "org/model " * 60 + "h200]")
    assert len(name.encode()) < 255
    assert "/" not in name
    assert "h200" in name
    assert file_name("tests/test_a.py::test_x").startswith("tests-test_a.py-test_x-")
