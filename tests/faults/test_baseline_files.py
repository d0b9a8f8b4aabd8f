"""Baselines on disks that are full or read-only, and with many writers at once."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf.baseline.store import Store

STUBS = Path(__file__).parent / "stubs"
MANY = int(os.environ.get("LLMPERF_BASELINE_KILLS", "200")) >= 10_000
WRITERS, TIMES = (16, 200) if MANY else (4, 10)


def own_mounts():
    """The command that gives a process a mount table of its own; None if that is not allowed."""
    command = ["unshare", "-rm"]
    if shutil.which("unshare") is None:
        return None
    tried = subprocess.run([*command, "true"], check=False, capture_output=True)
    return command if tried.returncode == 0 else None


@pytest.fixture(scope="module")
def disk_report(tmp_path_factory):
    unshare = own_mounts()
    if unshare is None:
        pytest.skip("mounting a file system of one's own is not allowed here")
    folder = tmp_path_factory.mktemp("mount")
    command = [*unshare, sys.executable, str(STUBS / "baseline_disk.py"), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_full_disk_leaves_baselines_unchanged(disk_report):
    """Fault 62."""
    old = {"x": 0, "y": 0, "z0": 0}
    assert disk_report["first"] == {"said": "", "values": old}
    failed = [attempt for attempt in disk_report["full"] if attempt["said"]]
    assert len(failed) >= 4
    assert disk_report["full"][-1]["said"] == ""
    for number, attempt in enumerate(disk_report["full"], start=1):
        if attempt["said"]:
            assert "No space left on device" in attempt["said"]
            assert "Nothing was changed" in attempt["said"]
            assert attempt["values"] == old
        else:
            assert attempt["values"] == {"x": number, "y": number, "z0": 0, f"z{number}": number}


def test_a_read_only_disk_is_read_and_not_written(disk_report):
    """Fault 63."""
    assert "Read-only file system" in disk_report["read-only"]["said"]
    assert "Nothing was changed" in disk_report["read-only"]["said"]
    assert disk_report["read-only"]["values"] == {"x": 0, "y": 0, "z0": 0}
    assert disk_report["last"]["said"] == ""


def test_no_update_of_many_writers_is_lost(tmp_path):
    """Fault 51."""
    command = [sys.executable, str(STUBS / "baseline_adder.py"), str(tmp_path), str(TIMES)]
    writers = [subprocess.Popen(command) for _ in range(WRITERS)]
    assert [writer.wait() for writer in writers] == [0] * WRITERS
    values = {
        baseline.measurements[""].sessions[0].values("m") for baseline in Store(tmp_path).read_all("h200").values()
    }
    assert values == {(float(WRITERS * TIMES),)}
