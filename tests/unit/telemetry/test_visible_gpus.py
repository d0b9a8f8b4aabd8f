"""CUDA_VISIBLE_DEVICES, as CUDA reads it."""

import pytest

from pytest_llmperf.telemetry.hardware import Gpu, detect, visible_gpus
from pytest_llmperf.testing.fake_nvml import FakeGpu, FakeNvml

GPUS = [Gpu(0, "H", None, uuid="GPU-aa1"), Gpu(1, "H", None, uuid="GPU-ab2"), Gpu(2, "H", None)]


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 0 , 1 ", [0, 1]),
        ("0,7,1", [0]),               # CUDA ends at the first that it does not know
        ("-1", []),
        ("GPU-ab2", [1]),
        ("GPU-ab", [1]),
        ("GPU-a", []),                # of two
        ("MIG-GPU-aa1/1/0", [0]),
        ("NoDevFiles", []),
    ],
)
def test_visible_gpus_follow_cuda_visible_devices(value, indices):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert [gpu.index for gpu in visible_gpus(GPUS, environ)] == indices


def test_hidden_gpus_do_not_determine_machine_kind():
    nvml = FakeNvml([FakeGpu(), FakeGpu(name="NVIDIA L4", total_bytes=23034 << 20)])
    assert detect(nvml, environ={"CUDA_VISIBLE_DEVICES": "1"}).kind == "l4"
    hidden = detect(nvml, environ={"CUDA_VISIBLE_DEVICES": "-1"})
    assert hidden.kind == "cpu"
    assert str(hidden) == "no GPU (CUDA_VISIBLE_DEVICES='-1' names none of its 2 GPUs)"


@pytest.mark.parametrize(("shown", "count"), [("0,1", 2), ("1", 1)])
def test_hidden_dead_gpu_is_ignored(shown, count):
    detected = detect(FakeNvml([FakeGpu(), FakeGpu(), FakeGpu(lost=True)]), environ={"CUDA_VISIBLE_DEVICES": shown})
    assert str(detected) == f"{count} × NVIDIA H200, driver 580.1"


@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "0,2"}])
def test_a_dead_gpu_that_would_be_used_is_named(environ):
    detected = detect(FakeNvml([FakeGpu(), FakeGpu(), FakeGpu(lost=True)]), environ=environ)
    assert str(detected) == "no GPU (NVML: GPU 2: fell off the bus)"
    assert detected.cpu is not None
