"""One session leaves one run folder, whichever workers of xdist have run its tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf.errors import BaselineError
from pytest_llmperf.report.html.page import servers_of
from pytest_llmperf.report.junit import read_release
from pytest_llmperf.results.reader import SCHEMA, read_run

pytestmark = pytest.mark.emulated
SUITE = """
import os
from pathlib import Path
import pytest
from pytest_llmperf import closed, random_tokens, vllm

TRAFFIC = random_tokens(input=64, output=8, arrivals=closed(2), requests=6)

def measured(perf):
    perf.check(perf.measure(vllm("llama-3.1-8b"), TRAFFIC, runs=1), "error_rate == 0", "prefix_cache_hit_rate == 0")

@pytest.mark.parametrize("n", range(4))
def test_it(perf, n): measured(perf)
"""
CRASH = """
def test_crash(perf):
    measured(perf)
    if not Path("crashed").exists():
        Path("crashed").touch()
        os._exit(1)
"""
# Every worker writes at the same time: none begins before the other does.
TOGETHER = """
import time

@pytest.fixture(autouse=True)
def together(worker_id):
    Path(f"here-{worker_id}").touch()
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s and len(list(Path.cwd().glob("here-*"))) < 2:
        time.sleep(0.01)
"""


def folder_of(pytester):
    (folder,) = Path(pytester.path, ".llmperf/runs").iterdir()
    return folder


def llmperf(pytester, *args):
    command = [sys.executable, "-m", "pytest_llmperf", *map(str, args)]
    return subprocess.run(command, check=True, cwd=pytester.path, capture_output=True, text=True).stdout


def test_commands_see_the_tests_of_all_workers(run, pytester):
    result, _ = run(SUITE + TOGETHER, "--emulate", "h200", "-n", "2")
    result.assert_outcomes(passed=4)
    folder = folder_of(pytester)
    ids = [f"test_it.py::test_it[{n}]" for n in range(4)]
    tests = read_run(folder)
    assert [test.test for test in tests] == ids
    assert {test.worker for test in tests} == {"gw0", "gw1"}
    assert json.loads((folder / "session.json").read_text())["session"] == folder.name
    page = (folder / "report.html").read_text()
    assert llmperf(pytester, "report", folder).strip() == str(folder / "report.html")
    assert (folder / "report.html").read_text() == page
    assert all(each in page for each in ids)
    assert llmperf(pytester, "show", folder).count("PASS  test_it.py::test_it[") == 4
    assert llmperf(pytester, "diff", folder, folder).count("test_it.py::test_it[") == 4
    llmperf(pytester, "export", folder, "--format=vllm", "--out=exported")
    assert len(list(Path(pytester.path, "exported").iterdir())) == 4


@pytest.mark.parametrize("options", [
    pytest.param(("-n", "0"), marks=pytest.mark.thorough), ("-n", "2", "--dist=loadgroup"),
    pytest.param(("-n", "2", "--dist=worksteal"), marks=pytest.mark.thorough),
], ids=" ".join)
def test_way_of_distributing_changes_no_folder(run, pytester, options):
    result, _ = run(SUITE, "--emulate", "h200", *options)
    result.assert_outcomes(passed=4)
    assert len(read_run(folder_of(pytester))) == 4


def test_replacement_worker_keeps_files_of_crashed_worker(run, pytester):
    result, _ = run(SUITE + CRASH, "--emulate", "h200", "-n", "1", "--reruns=1")
    assert result.ret == 12
    folder = folder_of(pytester)
    crashed = [test for test in read_run(folder) if test.test.endswith("test_crash")]
    assert sorted((test.worker, test.complete) for test in crashed) == [("gw0", False), ("gw1", True)]
    assert len(read_release(folder)) == 5
    assert (folder / "ended_without_verdict.txt").read_text().startswith("llmperf: pytest worker gw0 (pid ")


def test_server_folders_of_each_worker_have_the_name_of_the_worker(run, pytester):
    run(SUITE + TOGETHER, "--emulate", "h200", "-n", "2")
    for test in read_run(folder_of(pytester)):
        (server,) = servers_of(test)
        assert server.path.startswith(f"servers/{test.worker}/01-vllm-")


@pytest.mark.parametrize("worker", ["../gw0", "..", "a/b"])
def test_worker_that_is_no_name_is_refused(tmp_path, worker):
    (folder := tmp_path / "run/tests").mkdir(parents=True)
    content = {"schema": SCHEMA, "test": "t.py::t", "worker": worker, "complete": True, "error": None,
               "measurements": [], "checks": []}
    (folder / "t.json").write_text(json.dumps(content))
    with pytest.raises(BaselineError, match="no name of a worker"):
        read_run(folder.parent)
