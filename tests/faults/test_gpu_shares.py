"""Workers of xdist on a host with several GPUs measure at the same time, each on its part of the host."""



import pytest

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
    deadline = time.monotonic() + 40
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
    result, _ = suite.run(SUITE, "-m", "h200", "-n2", "-rs", "--timeout=60")
    result.assert_outcomes(passed=2, skipped=1)
    files = suite.run_files()
    conditions = [files[f"test_x[{number}]"]["measurements"][0]["conditions"] for number in (0, 1)]
    assert [(each["gpu_count"], each["host_shared_by"]) for each in conditions] == [("1", "2")] * 2
    assert sorted(path.name for path in suite.folder.glob("visible-*")) == ["visible-0", "visible-1"]
    result.stdout.fnmatch_lines(["*needs 2 GPUs; this worker of 2 has 1 × *: run it without -n*"])
    suite.nothing_left(0.5)


@pytest.mark.usefixtures("host_with_two_gpus")
def test_more_workers_than_gpus_take_turns_on_the_whole_host(suite):
    text = SUITE.replace("while len(", "while False and len(").replace("os.environ['CUDA_VISIBLE_DEVICES']", "number")
    result, _ = suite.run(text, "-m", "h200", "-n3", "--timeout=60")
    result.assert_outcomes(passed=3)
    assert all("host_shared_by" not in test["measurements"][0]["conditions"] for test in suite.run_files().values())
