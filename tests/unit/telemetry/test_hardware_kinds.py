"""Which marker a GPU gets, and what becomes of a driver that does not answer."""

import threading
from types import SimpleNamespace

import pytest

from pytest_llmperf.kinds import OTHER_GPU
from pytest_llmperf.telemetry.cpu import read_cpu
from pytest_llmperf.telemetry.hardware import Gpu, Hardware, detect, gpu_kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", None),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", None),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", None),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA A100X", None),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", None),  # 2.0 TB/s
        ("NVIDIA H100 NVL", None),  # 94 GB
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H20", None),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI300A", None),
    ],
)
def test_kind_of_a_device_name(name, kind):
    assert gpu_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "mib", "kind"),
    [
        ("NVIDIA L4", 23034, "l4"),
        ("NVIDIA A100-SXM4-40GB", 40960, None),
        ("NVIDIA A100-PG509-200", 40960, None),
        ("NVIDIA A100-SXM-64GB", 65536, None),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100"),
        ("NVIDIA H100", 95830, None),
        ("NVIDIA H200", 143771, "h200"),
        ("NVIDIA L40S", 46068, "l40s"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx_4090"),
        ("AMD Instinct MI300X", 24564, None),  # a partition
    ],
)
def test_a_model_with_other_memory_is_another_gpu(name, mib, kind):
    assert gpu_kind(name, mib * 2**20) == kind


def test_machine_kind_is_cpu_marker_or_other_gpu():
    assert Hardware().kind == "cpu"
    assert Hardware((Gpu(0, "NVIDIA H200", "h200"),)).kind == "h200"
    assert Hardware((Gpu(0, "NVIDIA L40", None),)).kind == OTHER_GPU  # a GPU, so never "cpu"


class Nvml:
    """As pynvml, of two H200s; `fails` names the call that raises."""

    def __init__(self, fails=""):
        self.fails = fails
        self.hang = threading.Event()

    def _call(self, name):
        if name == self.fails:
            raise RuntimeError(f"{name} failed")

    def nvmlInit(self):
        if self.fails == "hang":
            self.hang.wait()
        self._call("nvmlInit")

    def nvmlShutdown(self):
        self._call("nvmlShutdown")

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        self._call("nvmlDeviceGetHandleByIndex")
        return index

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle):
        self._call("nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(total=141 << 30)

    def nvmlSystemGetDriverVersion(self):
        return "580.1"

    def nvmlSystemGetCudaDriverVersion(self):
        self._call("nvmlSystemGetCudaDriverVersion")
        return 12080


def test_two_gpus_are_detected_with_memory_and_driver():
    hardware = detect(Nvml())
    assert [gpu.memory_bytes for gpu in hardware.gpus] == [141 << 30] * 2
    assert str(hardware) == "2 × NVIDIA H200, driver 580.1"


def test_cuda_version_is_read_from_driver():
    assert detect(Nvml()).cuda == "12.8"
    unknown = detect(Nvml(fails="nvmlSystemGetCudaDriverVersion"))
    assert (unknown.kind, unknown.cuda) == ("h200", None)


def test_the_cpu_is_known_whatever_became_of_the_driver():
    assert detect(Nvml(fails="nvmlInit")).cpu == detect(Nvml()).cpu == read_cpu()
    assert detect(Nvml(), environ={"CUDA_VISIBLE_DEVICES": ""}).cpu == read_cpu()


@pytest.mark.parametrize(
    ("call", "expected"),
    [("nvmlInit", "nvmlInit failed"), ("nvmlDeviceGetHandleByIndex", "GPU 0: nvmlDeviceGetHandleByIndex failed")],
)
def test_a_driver_that_fails_is_named(call, expected):
    hardware = detect(Nvml(fails=call))
    assert hardware.gpus == ()
    assert str(hardware) == f"no GPU (NVML: {expected})"


def test_failed_nvml_shutdown_keeps_detected_hardware():
    assert detect(Nvml(fails="nvmlShutdown")).kind == "h200"


def test_memory_that_the_driver_does_not_tell_is_unknown():
    hardware = detect(Nvml(fails="nvmlDeviceGetMemoryInfo"))
    assert hardware.kind == "h200"
    assert hardware.gpus[0].memory_bytes is None


def test_hanging_driver_ends_detection_after_timeout():
    nvml = Nvml(fails="hang")
    try:
        assert "did not answer within 0.05 s" in str(detect(nvml, timeout_s=0.05))
    finally:
        nvml.hang.set()


class AmdSmi:
    """As amdsmi, of two MI300X; `fails` names the call that raises."""

    def __init__(self, *handles, fails=""):
        self.handles, self.fails = handles, fails

    def amdsmi_init(self):
        if self.fails == "amdsmi_init":
            raise RuntimeError("driver not loaded")

    def amdsmi_shut_down(self):
        pass

    def amdsmi_get_processor_handles(self):
        return list(self.handles)

    def amdsmi_get_gpu_asic_info(self, handle):
        return {"market_name": "AMD Instinct MI300X"}

    def amdsmi_get_gpu_vram_info(self, handle):
        return {"vram_size": 196592}

    def amdsmi_get_gpu_device_uuid(self, handle):
        return f"uuid-{handle}"

    def amdsmi_get_gpu_driver_info(self, handle):
        return {"driver_version": "6.10.5"}


def test_gpus_of_amd_are_found_where_nvml_shows_none():
    hardware = detect(Nvml(fails="nvmlInit"), smi=AmdSmi("a", "b"), environ={})
    assert (hardware.kind, len(hardware.gpus), hardware.gpus[1].memory_bytes) == ("mi300x", 2, 196592 * 2**20)
    assert str(hardware) == "2 × AMD Instinct MI300X, driver amdgpu 6.10.5"


def test_hip_variable_hides_gpus_of_amd_and_not_of_nvidia():
    hidden = detect(Nvml(fails="nvmlInit"), smi=AmdSmi("a", "b"), environ={"HIP_VISIBLE_DEVICES": "1"})
    assert ([gpu.index for gpu in hidden.gpus], len(hidden.hidden)) == ([1], 1)
    assert len(detect(Nvml(), environ={"HIP_VISIBLE_DEVICES": "1"}).gpus) == 2


def test_missing_gpus_of_amd_leave_the_reason_of_nvml():
    assert "nvmlInit failed" in str(detect(Nvml(fails="nvmlInit"), smi=AmdSmi()))
    assert str(detect(Nvml(fails="nvmlInit"), smi=AmdSmi(fails="amdsmi_init"))) == "no GPU (AMD SMI: driver not loaded)"
