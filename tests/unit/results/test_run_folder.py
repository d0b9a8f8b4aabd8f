"""One file per test: whole, valid JSON, and nobody else's."""

import json
import resource
import signal
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.errors import InfrastructureError
from pytest_llmperf.metrics.failed_as_infinite import values_with_failures
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.telemetry import ForeignProcess, GaugeSample, GpuDevice, GpuSample, GpuTrace
from pytest_llmperf.process.places import writable
from pytest_llmperf.results.measurement import failures_text
from pytest_llmperf.results.profile import Profile
from pytest_llmperf.results.reader import read_test
from pytest_llmperf.results.writer import file_name, write_test
from pytest_llmperf.stats.priors import Margins
from pytest_llmperf.telemetry.torch_trace import Breakdown
from pytest_llmperf.testing.records import make_record


def test_run_file_contains_checks_conditions_and_runs(tmp_path, measurement):
    result = CheckResult.stated("ttft_p99 <= 1s", Verdict.FAIL, "slow", metric="ttft_p99")
    path = write_test(tmp_path, "tests/test_a.py::test_x", [measurement], [result], complete=False)
    run_file = json.loads(path.read_text())
    assert (run_file["schema"], run_file["test"], run_file["complete"]) == (1, "tests/test_a.py::test_x", False)
    (check,) = run_file["checks"]
    texts = {"metric": "ttft_p99", "limit": "", "measured": "-", "interval": "", "n": "", "reason": "slow"}
    assert check.items() >= {"subject": "ttft_p99 <= 1s", "verdict": "FAIL", "cause": "stated", **texts}.items()
    assert (check["estimate"], check["low"], check["limit_value"], check["problems"]) == (None, None, None, [])
    (only,) = run_file["measurements"]
    assert only["conditions"] == {"engine": "vllm", "model": "m"}
    assert [run["seed"] for run in only["runs"]] == [0, 1]
    assert only["runs"][1]["metrics"]["error_rate"] == 0.5
    assert only["runs"][0]["metrics"]["prefix_cache_hit_rate"] is None
    assert "records" not in only["runs"][0]


def test_both_margins_are_kept(tmp_path, measurement):
    compared = replace(measurement, baseline="", margins={"ttft_p50": Margins(0.02, 0.15)})
    path = write_test(tmp_path, "test", [compared], [])
    assert read_test(path).measurements[0].margins == {"ttft_p50": Margins(0.02, 0.15)}
    run_file = json.loads(path.read_text())
    del run_file["measurements"][0]["negligible"]  # a run file of an older version
    path.write_text(json.dumps(run_file))
    assert read_test(path).measurements[0].margins == {"ttft_p50": Margins(0.4 * 0.15, 0.15)}


def test_stored_values_count_failed_requests_as_infinite(tmp_path, measurement_of):
    """Of four requests one failed: the median lies between the second and the third, and the mean has no end."""
    ttfts = {10.0: Outcome.TIMEOUT, 20.0: Outcome.OK, 30.0: Outcome.OK, 40.0: Outcome.OK}
    records = [make_record(i, ttft_ms=ttft, outcome=outcome) for i, (ttft, outcome) in enumerate(ttfts.items())]
    compared = replace(measurement_of(records), baseline="")
    path = write_test(tmp_path, "test", [compared], [])
    (run,) = json.loads(path.read_text())["measurements"][0]["runs"]
    assert (run["metrics"]["ttft_p50"], run["metrics"]["ttft_mean"]) == (30.0, 30.0)
    values = values_with_failures(read_test(path).measurements[0].metrics[0])
    assert (values["ttft_p50"], values["ttft_mean"], values["error_rate"]) == (35.0, None, 0.25)
    assert failures_text(read_test(path).measurements[0].runs) == "1 × timeout"
    whole = json.loads(write_test(tmp_path, "whole", [measurement_of(records[1:])], []).read_text())
    assert whole["measurements"][0]["runs"][0]["judged"] == {}


def test_telemetry_is_a_table_with_a_line_per_column(tmp_path, measurement_of):
    samples = tuple(GpuSample(at_ns * 1000, 0, power_w=None if at_ns else 1.5) for at_ns in range(-1, 2))
    trace = GpuTrace((GpuDevice(0, "NVIDIA H200", (("mig", "off"),)),), samples, (ForeignProcess(0, 42, 1 << 30),))
    gauges = (GaugeSample(0, {"running": 3.0}), GaugeSample(250, {"running": 4.0, "kv_usage": 0.5}))
    measurement = measurement_of([make_record()])
    run = replace(measurement.runs[0], gpu=trace, gauges=gauges)
    path = write_test(tmp_path, "test[ 1, 2 ]", [replace(measurement, runs=(run,))], [])
    run_file = json.loads(path.read_text())
    (stored_run,) = run_file["measurements"][0]["runs"]
    assert run_file["test"] == "test[ 1, 2 ]"
    assert stored_run["gpu"]["at_ns"] == [-1000, 0, 1000]
    assert stored_run["gpu"]["power_w"] == [None, 1.5, None]
    assert stored_run["server"] == {"at_ns": [0, 250], "running": [3.0, 4.0], "kv_usage": [None, 0.5]}
    assert stored_run["contended"] == "pid 42 held 1,024 MiB of GPU 0"
    assert stored_run["gpu_state"]["devices"] == [{"index": 0, "name": "NVIDIA H200", "settings": {"mig": "off"}}]
    assert '"at_ns": [ -1000, 0, 1000 ]' in path.read_text()


def test_a_run_without_gpus_says_so(tmp_path, measurement):
    run = json.loads(write_test(tmp_path, "test", [measurement], []).read_text())["measurements"][0]["runs"][0]
    assert (run["gpu"], run["gpu_state"], run["server"], run["contended"]) == (None, None, None, None)


def test_second_write_replaces_run_file_without_leftovers(tmp_path, measurement):
    write_test(tmp_path, "test", [], [])
    path = write_test(tmp_path, "test", [measurement], [])
    assert list((tmp_path / "tests").iterdir()) == [path]
    assert json.loads(path.read_text())["measurements"]


def test_nan_counter_raises_and_writes_no_run_file(tmp_path, measurement_of):
    with pytest.raises(ValueError, match="JSON"):
        write_test(tmp_path, "test", [measurement_of([], counters={"kv_usage_peak": float("nan")})], [])
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("first", "other"),
    [("t.py::x[a/b]", "t.py::x[a-b]"), ("t.py::x[é]", "t.py::x[è]"), ("a/b.py::x", "a-b.py::x"), ("[", "]")],
)
def test_two_tests_never_share_a_file(first, other):
    assert file_name(first) != file_name(other)


def test_names_are_readable_and_short_enough():
    name = file_name("tests/perf/test_long.py::test_x[" + "org/model " * 60 + "h200]")
    assert len(name.encode()) < 255
    assert "/" not in name
    assert "h200" in name
    assert file_name("tests/test_a.py::test_x").startswith("tests-test_a.py-test_x-")


def test_a_folder_that_cannot_be_written_is_known_beforehand(tmp_path):
    """Fault 63."""
    (tmp_path / "file").touch()
    assert writable(tmp_path / "new" / "newer")
    assert not writable(tmp_path / "file" / "new")
    assert not writable(Path("/proc/new"))  # its mode bits say yes
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@contextmanager
def no_file_beyond(size_bytes):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_full_disk_raises_error_and_keeps_previous_run_file(tmp_path, measurement):
    """Fault 62: a file may not grow beyond a kilobyte here, as if no more were free."""
    path = write_test(tmp_path, "t", [], [])
    earlier_content = path.read_bytes()
    with no_file_beyond(1024), pytest.raises(InfrastructureError, match=r"cannot be written: .*Free space there"):
        write_test(tmp_path, "t", [measurement], [])
    assert path.read_bytes() == earlier_content
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_profiles_are_read_back_as_written(tmp_path, measurement):
    rank = Breakdown("cpu", 100.0, 30.0, 20.0, 10.0, 15.0)
    traced = Profile(1, "vllm('m')", ("profiles/x.trace.json.gz",), (rank,))
    profiles = (traced, Profile(2, "vllm('n')", problem="none", nsys="profiles/x.nsys-rep"))
    assert read_test(write_test(tmp_path, "test", [measurement], [], profiles=profiles)).profiles == profiles
