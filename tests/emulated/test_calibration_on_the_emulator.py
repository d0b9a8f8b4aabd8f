"""`llmperf calibrate`: sessions of a user's tests, with the false alarms and the noise of the machine."""

import subprocess
import sys

import pytest

SUITE = """
import pytest
from pytest_llmperf import Perf, closed, random_tokens, vllm

@pytest.mark.h200
@pytest.mark.engine(vllm("llama-3.1-8b", max_model_len=4096))
def test_answers(engine, perf):
    run = perf.measure(engine, random_tokens(input=256, output=16, arrivals=closed(2), requests=12))
    perf.check(run, "error_rate == 0")
    primaries = ["ttft_p50", "tpot_mean", "output_throughput"]
    perf.compare_with_baseline(run, primaries=primaries, margins={"ttft_p50": 0.05, "tpot_mean": 0.3})
"""

pytestmark = pytest.mark.emulated


@pytest.fixture
def calibrate(tmp_path):
    """The command on a project with one suite."""
    (tmp_path / "test_own.py").write_text(SUITE)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")

    def run(*arguments, code=0):
        command = [sys.executable, "-m", "pytest_llmperf", "calibrate", "test_own.py", *arguments]
        completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert completed.returncode == code, completed.stdout + completed.stderr
        return completed

    return run


def test_noise_and_alarms_of_host_are_reported_with_warning_about_narrow_margins(calibrate):
    completed = calibrate("--sessions", "8", "--pytest", "--emulate h200 -p no:cacheprovider")
    lines = {line.split(" | ")[1]: line for line in completed.stdout.splitlines() if line.startswith("| test_own")}
    assert set(lines) == {"ttft_p50", "tpot_mean", "output_throughput"}
    assert "(14 df)" in lines["tpot_mean"]
    assert "WARNING: test_own.py::test_answers: ttft_p50 tolerates 5.0%" in completed.stdout
    assert "WARNING: test_own.py::test_answers: tpot_mean" not in completed.stdout
    assert "0 of 8 sessions have a FAIL or an ERROR" in completed.stdout


def test_calibration_from_one_session_is_refused(calibrate):
    assert "at least 2" in calibrate("--sessions", "1", code=2).stderr
