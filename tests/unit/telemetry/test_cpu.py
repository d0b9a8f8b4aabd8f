"""Which CPU this is, as the kernel and a container's quota say it."""

import os
import platform

import pytest

from pytest_llmperf.telemetry.cpu import read_cpu

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


def test_its_model(read):
    assert read("processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD  EPYC 7763 \n").model == "AMD EPYC 7763"


def test_a_kernel_that_names_none_tells_the_architecture(read):
    assert read("processor\t: 0\nCPU implementer\t: 0x41\n").model == platform.machine()


@pytest.mark.parametrize(
    ("quota", "cores"),
    [(None, USABLE), ("max 100000\n", USABLE), ("100000 100000\n", 1), ("50000 100000\n", 1), ("99999999 1\n", USABLE),
     ("of another shape", USABLE)],
)  # fmt: skip
def test_its_cores_are_those_that_we_may_use(read, quota, cores):
    assert read(quota=quota).cores == cores
