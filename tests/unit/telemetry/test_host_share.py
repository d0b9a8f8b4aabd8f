"""The share of a host's GPUs that belongs to each of several test processes."""

import os

import pytest

from pytest_llmperf.errors import HardwareBusy
from pytest_llmperf.telemetry.hardware import Gpu, Hardware, take_share

HOST = Hardware(tuple(Gpu(index, "NVIDIA H100 80GB HBM3", "h100") for index in range(5)))


@pytest.fixture(autouse=True)
def _cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(9)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cpus: CPUS.append(list(cpus)))
    CPUS.clear()


CPUS: list[list[int]] = []


def test_two_processes_get_neighbouring_gpus_and_cpus_of_their_own():
    environ: dict[str, str] = {}
    taken = {0}
    second = take_share(HOST, 2, lambda position: position not in taken, environ)
    assert [gpu.index for gpu in second.gpus] == [2, 3]
    assert [gpu.index for gpu in second.hidden] == [0, 1, 4]
    assert (environ["CUDA_VISIBLE_DEVICES"], CPUS, second.shared_by) == ("2,3", [[4, 5, 6, 7]], 2)


def test_names_in_cuda_visible_devices_are_kept():
    environ = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c,GPU-d,GPU-e"}
    take_share(HOST, 5, lambda position: position == 3, environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-d"


def test_share_of_amd_gpus_is_in_the_variable_that_amd_reads_first():
    environ = {"HIP_VISIBLE_DEVICES": "0,1,2,3,4"}
    take_share(HOST, 5, lambda position: position == 3, environ)
    assert environ == {"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "3"}


@pytest.mark.parametrize("processes", [1, 6])
def test_one_process_or_more_processes_than_gpus_have_the_whole_host(processes):
    environ: dict[str, str] = {}
    assert take_share(HOST, processes, lambda _: True, environ) is HOST
    assert (environ, CPUS) == ({}, [])


def test_process_beyond_all_positions_is_refused():
    with pytest.raises(HardwareBusy, match="have all 5 GPUs"):
        take_share(HOST, 2, lambda _: False, {})
