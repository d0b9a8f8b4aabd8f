"""The GPUs that a server uses, and the wait until these GPUs are free."""

import pytest

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.errors import HardwareBusy
from pytest_llmperf.model.status import Note, Waiting
from pytest_llmperf.telemetry import accelerators as accelerators_module
from pytest_llmperf.telemetry.accelerators import Accelerators
from pytest_llmperf.telemetry.hardware import Gpu, Hardware, detect, emulated_hardware
from pytest_llmperf.testing.fake_nvml import FakeGpu, FakeNvml

FOUR = Hardware(tuple(Gpu(i, "NVIDIA H200", "h200", uuid=f"GPU-{i}") for i in range(4)))


@pytest.fixture
def nvml():
    return FakeNvml([FakeGpu() for _ in range(4)])


@pytest.fixture
def statuses():
    return []


@pytest.fixture
def accelerators(nvml, statuses):
    return Accelerators(FOUR, VirtualClock(), statuses.append, 0.2, 256 << 20, 60.0, nvml)


@pytest.mark.parametrize(
    ("flags", "env", "kind", "indices"),
    [
        ({}, {}, "h200", [0]),
        ({"tensor_parallel_size": 2}, {}, "h200", [0, 1]),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, {}, None, [0, 1, 2, 3]),
        ({"tp_size": 2, "dp_size": 2}, {}, "h200", [0, 1, 2, 3]),
        ({"tp": 2, "pp_size": 2}, {}, "h200", [0, 1, 2, 3]),
        ({"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}, {}, "h200", [0, 1]),
        ({"base_gpu_id": 1}, {}, "h200", [1]),
        ({"tp": 2, "base_gpu_id": 1, "gpu_id_step": 2}, {}, "h200", [1, 3]),
        ({"base_gpu_id": 1}, {"CUDA_VISIBLE_DEVICES": "3,2"}, "h200", [2]),
        ({"tensor_parallel_size": 2}, {"CUDA_VISIBLE_DEVICES": "3,1"}, "h200", [3, 1]),
        ({"device_ids": 2}, {}, "h200", [2]),
        ({"tensor_parallel_size": 2, "device_ids": "3, 1"}, {}, "h200", [3, 1]),
        ({"tensor_parallel_size": 2, "device_ids": "1,0,2"}, {"CUDA_VISIBLE_DEVICES": "3,2"}, "h200", [2, 3]),
        ({"tensor_parallel_size": 2, "device_ids": "GPU-3,GPU-0"}, {"CUDA_VISIBLE_DEVICES": "1"}, "h200", [3, 0]),
        ({"device_ids": [2]}, {}, "h200", [2]),
        ({"device_ids": "7"}, {}, "h200", []),  # vLLM refuses it
        ({"tensor_parallel_size": "auto"}, {}, "h200", [0]),
        ({"tensor_parallel_size": 2}, {}, "cpu", []),
    ],
)
def test_server_gpus_follow_parallelism_flags_and_environment(accelerators, flags, env, kind, indices):
    assert [gpu.index for gpu in accelerators.of_server(flags, env, kind)] == indices


@pytest.mark.parametrize(
    ("env", "indices"),
    [({}, [2, 3]), ({"CUDA_VISIBLE_DEVICES": "0"}, [0]), ({"CUDA_VISIBLE_DEVICES": "3,1"}, [3, 1]),
     ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, [1]), ({"CUDA_VISIBLE_DEVICES": ""}, [])],
)
def test_gpus_of_spec_are_numbered_by_machine_and_not_by_session(accelerators, nvml, env, indices):
    """CUDA counts all GPUs again in the server, whatever pytest was left of them."""
    for index, gpu in enumerate(nvml.gpus):
        gpu.uuid = f"GPU-{index}"
    accelerators.hardware = detect(nvml, environ={"CUDA_VISIBLE_DEVICES": "2,3"})
    assert [gpu.index for gpu in accelerators.of_server({"tp_size": 2}, env, "h200")] == indices


@pytest.mark.parametrize("hardware", [Hardware(), emulated_hardware("h200", 8)])
def test_absent_or_emulated_gpus_are_not_watched(accelerators, nvml, hardware):
    accelerators.hardware = hardware
    gpus = accelerators.of_server({}, {}, "h200")
    accelerators.wait_free(gpus)
    with accelerators.watched(gpus, lambda: []) as trace:
        pass
    assert trace(0) is None
    assert nvml.calls == {}


def test_free_gpus_need_no_wait(accelerators):
    accelerators.wait_free(FOUR.gpus)
    assert accelerators.clock.now_ns() == 0


def test_small_remaining_gpu_memory_needs_no_wait(accelerators, nvml):
    nvml.gpus[0].used_bytes = 256 << 20
    accelerators.wait_free(FOUR.gpus)
    assert accelerators.clock.now_ns() == 0


class Freed(VirtualClock):
    """At 30 s the driver frees what a dead server held."""

    def __init__(self, gpu):
        super().__init__()
        self.gpu = gpu

    def sleep_ns(self, duration_ns):
        super().sleep_ns(duration_ns)
        if self.now_ns() >= 30_000_000_000:
            self.gpu.used_bytes = 0


def test_wait_ends_when_gpu_memory_is_free(accelerators, nvml, statuses):
    nvml.gpus[1].used_bytes = 60 << 30
    accelerators.clock = Freed(nvml.gpus[1])
    accelerators.wait_free(FOUR.gpus[:2])
    assert accelerators.clock.now_ns() == 30_000_000_000
    assert set(statuses) == {Waiting("GPU 1 has 61,440 MiB in use, by a process that cannot be seen from here")}


def test_unreleased_gpu_memory_is_an_error_that_names_process(accelerators, nvml):
    """Fault 69."""
    nvml.gpus[0].used_bytes = 60 << 30
    nvml.gpus[0].processes = {4_000_000: 60 << 30}
    with pytest.raises(HardwareBusy, match=r"GPU 0 has 61,440 MiB in use, by pid 4000000 .*, after waiting 60 s\."):
        accelerators.wait_free(FOUR.gpus[:1])
    assert accelerators.clock.now_ns() == 60_000_000_000


def test_kept_lmcache_memory_is_tolerated_only_up_to_limit(accelerators, nvml):
    nvml.gpus[0].used_bytes = 900 << 20
    accelerators.wait_free(FOUR.gpus[:1], stay=1)
    assert accelerators.clock.now_ns() == 0
    with pytest.raises(HardwareBusy, match="900 MiB") as busy:
        accelerators.wait_free(FOUR.gpus[:1])
    assert "LMCache" not in str(busy.value)
    nvml.gpus[0].used_bytes = 115_855 << 20
    ours = r'115,855 MiB .* own LMCache server stays because of keep=\("l1",\).* 2,304 MiB .*leave "l1" out'
    with pytest.raises(HardwareBusy, match=ours):
        accelerators.wait_free(FOUR.gpus[:1], stay=1)


def test_a_monitor_that_the_limit_allows_for_contends_no_run(accelerators, nvml):
    ours, theirs = 1_000_001, 1_000_002
    accelerators.free_bytes = 1 << 30
    nvml.gpus[0].processes = {ours: 60 << 30, theirs: 1000 << 20}
    with accelerators.watched(FOUR.gpus[:1], lambda: [ours]) as trace:
        pass
    assert trace(0).contended is None
    accelerators.free_bytes = 256 << 20
    with accelerators.watched(FOUR.gpus[:1], lambda: [ours]) as trace:
        pass
    assert "pid 1000002" in trace(0).contended


def test_memory_of_unused_gpus_is_ignored(accelerators, nvml):
    nvml.gpus[3].used_bytes = 60 << 30
    accelerators.wait_free(FOUR.gpus[:2])
    assert accelerators.clock.now_ns() == 0


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetMemoryInfo_v2"])
def test_a_driver_that_does_not_say_does_not_stop_the_start(accelerators, nvml, call):
    nvml.gpus[0].used_bytes = 60 << 30
    nvml.broken = {call}
    accelerators.wait_free(FOUR.gpus[:1])
    assert accelerators.clock.now_ns() == 0


def test_hanging_driver_before_start_is_reported_once(accelerators, nvml, statuses, monkeypatch):
    monkeypatch.setattr(accelerators_module, "NVML_TIMEOUT_S", 0.05)
    nvml.answering.clear()
    try:
        accelerators.wait_free(FOUR.gpus[:1])
        for _ in range(2):
            with accelerators.watched(FOUR.gpus[:1], lambda: []) as trace:
                pass
            assert trace(0).problem == "NVML did not answer within 0.05 s"
            assert [device.index for device in trace(0).devices] == [0]
    finally:
        nvml.answering.set()
    assert statuses == [Note("the GPUs were not watched: NVML did not answer within 0.05 s")]


def test_hanging_driver_in_failed_run_is_reported(accelerators, nvml, statuses, monkeypatch):
    monkeypatch.setattr(accelerators_module, "JOIN_S", 0.05)
    nvml.answering.clear()
    try:
        with pytest.raises(HardwareBusy), accelerators.watched(FOUR.gpus[:1], lambda: []):
            raise HardwareBusy("whatever ends a run")
        with accelerators.watched(FOUR.gpus[:1], lambda: []) as trace:
            pass
        assert trace(0).problem == "NVML did not answer within 0.05 s"
    finally:
        nvml.answering.set()
    assert statuses == [Note("the GPUs were not watched: NVML did not answer within 0.05 s")]


@pytest.mark.parametrize(
    ("processes", "alone", "held"),
    [({7: 20 << 30, 8: 3 << 30, 9: 40 << 30}, False, 23 << 30), ({9: 40 << 30}, False, None),
     ({9: 40 << 30}, True, 50 << 30), ({7: None}, True, None)],
)
def test_held_memory_is_of_own_processes_or_of_all_if_alone(accelerators, nvml, processes, alone, held):
    nvml.gpus[0].processes, nvml.gpus[0].used_bytes = processes, 50 << 30
    gpus = accelerators.of_server({}, {}, "h200")
    assert accelerators.held_bytes(gpus, (7, 8), alone=alone) == held


def test_held_memory_is_of_fullest_gpu_and_missing_without_driver(accelerators, nvml):
    nvml.gpus[0].processes, nvml.gpus[1].processes = {7: 1 << 30}, {7: 2 << 30}
    gpus = accelerators.of_server({"tensor_parallel_size": 2}, {}, "h200")
    assert accelerators.held_bytes(gpus, (7,), alone=False) == 2 << 30
    nvml.broken.add("nvmlInit")
    assert accelerators.held_bytes(gpus, (7,), alone=False) is None
    assert accelerators.held_bytes((), (7,), alone=False) is None
