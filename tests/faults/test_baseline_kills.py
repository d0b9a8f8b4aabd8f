"""Faults 50 to 52: whenever a writer of baselines is killed, every file is old or new, and the next write succeeds."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

KILLS = int(os.environ.get("LLMPERF_BASELINE_KILLS", "200"))
WRITER = Path(__file__).parent / "stubs" / "baseline_writer.py"
# In memory nothing waits for a device, so more kills hit what the process itself does; on a disk most hit a wait.
PLACES = {"disk": None, "memory": "/dev/shm"}


@pytest.fixture
def folder(request):
    parent = PLACES[request.param]
    if parent is not None and not os.access(parent, os.W_OK):
        pytest.skip(f"no {parent} here")
    made = Path(tempfile.mkdtemp(prefix="llmperf-kills-", dir=parent))
    yield made / "baselines", KILLS // len(PLACES)
    shutil.rmtree(made)


@pytest.mark.timeout(60 + KILLS * 2)
@pytest.mark.parametrize("folder", PLACES, indirect=True)
def test_killed_writer_leaves_each_baseline_old_or_new(folder):
    root, kills = folder
    command = [sys.executable, str(WRITER), str(root), str(kills), "seed"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    print(report)
    assert report["kills"] == kills
    # Otherwise the moments were not random enough to have shown anything.
    in_between = kills - report.get("between two updates", 0)
    assert in_between >= kills / 50, report
