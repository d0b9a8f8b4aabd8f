"""Which CPU this is, as the kernel and a container's quota say it, and what became of its time."""

import os
import platform

import pytest

from pytest_llmperf.model.telemetry import CpuUse
from pytest_llmperf.telemetry.cpu import read_cpu, use_from_now

USABLE = len(os.sched_getaffinity(0))


@pytest.fixture
def read(tmp_path):
    """A CPU of which these files tell."""
    def read(cpuinfo="", quota=None):
        (tmp_path / "cpuinfo").write_text(cpuinfo)
        if quota is not None:
            (tmp_path / "cpu.max").write_text(quota)
        return read_cpu(tmp_path / "cpuinfo", tmp_path / "cpu.max")

    return read


def test_cpu_model_is_read_from_cpuinfo(read):
    assert read("processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD  EPYC 7763 \n").model == "AMD EPYC 7763"


def test_missing_cpu_model_is_replaced_by_architecture(read):
    assert read("processor\t: 0\nCPU implementer\t: 0x41\n").model == platform.machine()


@pytest.mark.parametrize(
    ("quota", "cores"),
    [(None, USABLE), ("max 100000\n", USABLE), ("100000 100000\n", 1), ("50000 100000\n", 1), ("99999999 1\n", USABLE),
     ("of another shape", USABLE)],
)  # fmt: skip
def test_cpu_cores_are_limited_by_quota_and_affinity(read, quota, cores):
    assert read(quota=quota).cores == cores


@pytest.fixture
def use_between(tmp_path):
    """What became of the time between two states of this file."""
    def use_between(before, after):
        stat = tmp_path / "stat"
        stat.write_text(before)
        use = use_from_now(stat)
        stat.write_text(after)
        return use()

    return use_between


def test_cpu_use_separates_busy_and_stolen_time(use_between):
    # user nice system idle iowait irq softirq steal guest guest_nice: 1000 more, of which 400 are worked and 50 stolen.
    use = use_between("cpu  100 0 50 1000 10 0 5 7 60 0\ncpu0 1 2 3\n", "cpu  300 100 100 1500 60 10 45 57 160 50\n")
    assert use == CpuUse(busy=0.4, stolen=0.05)


@pytest.mark.parametrize(
    ("before", "after"),
    [("cpu  1 1 1 1 1 1 1 1\n", "cpu  1 1 1 1 1 1 1 1\n"), ("", "cpu  1 1 1 1 1 1 1 1\n"),
     ("cpu  1 1 1 1 1 1 1 1\n", "cpu  2 2 2 2\n"), ("cpu  1 1 1 1 1 1 1 1\n", "intr 2 2 2 2 2 2 2 2\n"),
     ("cpu  1 1 1 1 1 1 1 1\n", "cpu  a few more\n")],
)  # fmt: skip
def test_unreadable_cpu_statistics_give_no_cpu_use(use_between, before, after):
    assert use_between(before, after) is None


def test_missing_cpu_statistics_file_gives_no_cpu_use(tmp_path):
    assert use_from_now(tmp_path / "missing")() is None


def test_cpu_use_of_current_machine_is_between_0_and_1():
    if platform.system() != "Linux":
        pytest.skip("only Linux says")
    begun, use = os.times().user, use_from_now()
    while os.times().user - begun < 0.3:
        pass
    used = use()
    assert used is not None
    assert 0 < used.busy <= 1
    assert 0 <= used.stolen < 1
