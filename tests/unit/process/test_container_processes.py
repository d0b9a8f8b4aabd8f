"""Process ids of a container, as a command of its runtime prints them."""

import os
import sys

import pytest

from pytest_llmperf.clock import VirtualClock, seconds
from pytest_llmperf.process.supervisor import VALID_S, ContainerProcesses


@pytest.fixture
def listed(tmp_path):
    """Gives the processes by a program that prints `text`, and notes each call."""
    def listed(text, code=0):
        program = f"open({str(tmp_path / 'calls')!r}, 'a').write('.'); print({text!r}); raise SystemExit({code})"
        return ContainerProcesses((sys.executable, "-c", program), os.environ, clock)

    clock = VirtualClock()
    listed.clock, listed.calls = clock, lambda: len((tmp_path / "calls").read_text())
    return listed


@pytest.mark.parametrize(
    ("text", "code", "pids"),
    [("PID\n17\n4000001\n", 0, (17, 4000001)), ("17 18", 0, (17, 18)), ("PID", 0, ()), ("17", 1, ()), ("-3 x9", 0, ())],
)
def test_numbers_of_successful_command_are_process_ids(listed, text, code, pids):
    assert listed(text, code).pids() == pids


def test_command_runs_again_after_answer_has_become_old(listed):
    processes = listed("17")
    processes.pids()
    listed.clock.advance_to(seconds(VALID_S) - 1)
    processes.pids()
    assert listed.calls() == 1
    listed.clock.advance_to(seconds(VALID_S) + 1)
    assert processes.pids() == (17,)
    assert listed.calls() == 2


def test_server_without_container_has_no_container_processes():
    assert ContainerProcesses((), {}, VirtualClock()).pids() == ()
