"""Somebody says so where a measuring process ends before its verdicts are told."""

import subprocess
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("supervision is Linux only", allow_module_level=True)

MEASURES = """
import os, signal, sys
from pathlib import Path
from pytest_llmperf.process.session_watchdog import SessionWatchdog

watchdog = SessionWatchdog(Path(sys.argv[1]), "pytest (pid 7)")
{ending}
"""
SAID = "llmperf: pytest (pid 7) ended without verdict, so the exit code says nothing about the tests."


def run(folder, ending):
    """What the process and its watchdog have written to standard error, once both have ended."""
    command = [sys.executable, "-c", MEASURES.format(ending=ending), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stderr


@pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_process_exit_before_verdicts_is_reported(tmp_path, ending):
    said = run(tmp_path, ending)
    assert said.startswith(SAID)
    assert said.rstrip().endswith(f"llmperf show {tmp_path}")
    assert (tmp_path / "ended_without_verdict.txt").read_text() == said


def test_process_exit_after_verdicts_is_not_reported(tmp_path):
    assert run(tmp_path, "watchdog.end(); watchdog.end(); os._exit(0)") == ""
    assert not list(tmp_path.iterdir())


def test_killed_watchdog_does_not_disturb_session(tmp_path):
    ending = "os.kill(watchdog._process.pid, signal.SIGKILL); watchdog.end()"
    assert run(tmp_path, ending) == ""


def test_reports_of_several_processes_are_appended(tmp_path):
    for _ in range(2):
        run(tmp_path, "os._exit(0)")
    assert len((tmp_path / "ended_without_verdict.txt").read_text().splitlines()) == 2
