"""Scheduling priority of the load process, and the conditions under which the process lowers its priority."""

import os
import subprocess
import sys

import pytest

NEVER_SLEEPS = """
import os, time
from pytest_llmperf.load import cores as priority
priority._REAL_TIME_LIMIT_US = 200_000  # 2 s would take a core from other tests
priority.raise_priority(())
print(os.sched_getscheduler(0) == os.SCHED_FIFO, flush=True)
until = time.monotonic() + 20
while os.sched_getscheduler(0) == os.SCHED_FIFO and time.monotonic() < until:
    pass
print(os.sched_getscheduler(0) == os.SCHED_OTHER)
"""


LIMITED = """
import os, resource, time
from pytest_llmperf.load import cores as priority
resource.setrlimit(resource.RLIMIT_RTTIME, (500_000, 500_000))
os.setgid(65534), os.setuid(65534)
priority.raise_priority(())
until = time.monotonic() + 0.8
while time.monotonic() < until:
    pass
print("still here")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_machine_that_limits_real_time_kills_no_load_process():
    """Nobody but root may raise the limit, at which the kernel kills."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "still here\n"), done.stderr


def test_load_process_without_sleep_gives_up_real_time_priority():
    done = subprocess.run([sys.executable, "-c", NEVER_SLEEPS], capture_output=True, text=True, timeout=60, check=True)
    real_time, stood_back = done.stdout.split()
    if real_time != "True":
        pytest.skip("real-time scheduling is not permitted here")
    assert stood_back == "True"
