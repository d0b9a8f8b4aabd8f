"""Who runs first, and when it stands back."""

import subprocess
import sys

import pytest

NEVER_SLEEPS = """
import os, time
from pytest_llmperf.load import precedence
precedence._AWAKE_LIMIT_US = 200_000  # 2 s would take a core from other tests
precedence.come_first(())
print(os.sched_getscheduler(0) == os.SCHED_FIFO, flush=True)
until = time.monotonic() + 20
while os.sched_getscheduler(0) == os.SCHED_FIFO and time.monotonic() < until:
    pass
print(os.sched_getscheduler(0) == os.SCHED_OTHER)
"""


def test_a_load_process_that_never_sleeps_stands_back():
    done = subprocess.run([sys.executable, "-c", NEVER_SLEEPS], capture_output=True, text=True, timeout=60, check=True)
    real_time, stood_back = done.stdout.split()
    if real_time != "True":
        pytest.skip("real-time scheduling is not permitted here")
    assert stood_back == "True"
