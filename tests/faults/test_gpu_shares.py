"""Workers of xdist, and servers of two builds, measure at the same time on the GPUs of a host."""

import sys
from collections import Counter

import pytest

from tests.faults.conftest import ENGINE

FAKE = """
import os
from pytest_llmperf.testing.fake_nvml import FakeGpu, FakeNvml

fake = FakeNvml([FakeGpu(uuid=f"GPU-{i}") for i in range(2)])
__getattr__ = lambda name: getattr(fake, name)
"""
SUITE = """
import pathlib

@pytest.mark.h200
@pytest.mark.parametrize("number", range(2))
@pytest.mark.engine(stub())
def test_x(engine, perf, number):
    here = pathlib.Path(f"visible-{os.environ['CUDA_VISIBLE_DEVICES']}")
    here.touch()
    deadline = time.monotonic() + 120
    while len(list(pathlib.Path().glob("visible-*"))) < 2:  # the other worker has a server now, too
        assert time.monotonic() < deadline
        time.sleep(0.05)
    perf.check(perf.measure(engine, FEW, runs=1), "error_rate == 0")

@pytest.mark.h200
@pytest.mark.gpus(2)
@pytest.mark.engine(stub())
def test_both(engine, perf):
    perf.check(perf.measure(engine, FEW, runs=1), "error_rate == 0")
"""


@pytest.fixture
def host_with_two_gpus(suite, monkeypatch):
    (suite.folder / "pynvml.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(suite.folder), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    suite.settings(gpu_interval_s=0.05, gpu_free_timeout_s=0.2)


@pytest.mark.usefixtures("host_with_two_gpus")
def test_two_workers_measure_at_the_same_time_on_a_gpu_each(suite):
    result, _ = suite.run(SUITE, "-m", "h200", "-n2", "-rs", "--timeout=140")
    result.assert_outcomes(passed=2, skipped=1)
    files = suite.run_files()
    conditions = [files[f"test_x[{number}]"]["measurements"][0]["conditions"] for number in (0, 1)]
    assert [(each["gpu_count"], each["host_shared_by"]) for each in conditions] == [("1", "2")] * 2
    assert sorted(path.name for path in suite.folder.glob("visible-*")) == ["visible-0", "visible-1"]
    result.stdout.fnmatch_lines(["*needs 2 GPUs; this worker of 2 has 1 × *: run it without -n*"])
    suite.teardowns_left_nothing()


@pytest.mark.usefixtures("host_with_two_gpus")
def test_more_workers_than_gpus_take_turns_on_the_whole_host(suite):
    text = SUITE.replace("while len(", "while False and len(").replace("os.environ['CUDA_VISIBLE_DEVICES']", "number")
    result, _ = suite.run(text, "-m", "h200", "-n3", "--timeout=140")
    result.assert_outcomes(passed=3)
    assert all("host_shared_by" not in test["measurements"][0]["conditions"] for test in suite.run_files().values())


BUILDS = """
from pytest_llmperf.engines.process.pool import EnginePool

EnginePool.wait_steady = lambda pool, servers: None  # servers without a GPU are as fast at once

@pytest.mark.h200
def test_x(perf):
    engine = stub(){flags}
    perf.compare_with_baseline(perf.measure(engine, FEW, runs=1), primaries=["itl_p50"])
"""
#: A reference build that notes which GPUs each of its servers sees.
NOTED = """#!/bin/sh
echo "sees ${CUDA_VISIBLE_DEVICES-all}" >> seen
exec %s %s "$@"
"""


@pytest.mark.usefixtures("host_with_two_gpus")
@pytest.mark.parametrize(("flags", "treatment"), [
    ("", "1 idle server beside it; 2 servers on other GPUs"),
    (".with_flags(gpu_memory_utilization=0.9)", "1 server on other GPUs"),
], ids=["both builds on each GPU", "builds that exchange the GPUs"])
def test_two_builds_are_measured_on_two_gpus_at_the_same_time(suite, flags, treatment):
    reference = suite.folder / "reference.sh"
    reference.write_text(NOTED % (sys.executable, ENGINE))
    reference.chmod(0o755)
    suite.run(BUILDS.format(flags=flags), "-m", "h200", f"--reference=vllm={reference}", "--llmperf-extension-limit=0")
    _, candidate, reference = suite.run_files()["test_x"]["measurements"]
    assert [Counter(run["start_id"] for run in side["runs"]) for side in (candidate, reference)] == [
        {1: 3, 3: 3}, {2: 3, 4: 3}]
    assert {side["conditions"]["treatment"] for side in (candidate, reference)} == {treatment}
    assert sorted((suite.folder / "seen").read_text().splitlines()) == ["sees 1", "sees all"]
    of_turns = Counter(run["block"] for side in (candidate, reference) for run in side["runs"])
    assert of_turns == dict.fromkeys(range(1, 7), 2)  # turns of two runs at the same time
    suite.nothing_left()
