"""The platform itself: neither sgl_kernel nor triton is needed."""

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.interface import PlatformEnum, SRTPlatform


class PlainCpu(CpuDeviceMixin, SRTPlatform):
    """A CPU that brings no kernels of its own."""

    _enum = PlatformEnum.OOT

    def get_device(self, device_id: int = 0) -> str:  # noqa: ARG002 - there is one
        return "cpu"

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_torch_profiler_activity_str(self) -> str:
        return "CPU"

    def get_torch_profiler_activity(self) -> torch.profiler.ProfilerActivity:
        return torch.profiler.ProfilerActivity.CPU

    def get_compile_backend(self, mode: str | None = None) -> str:  # noqa: ARG002 - always the same
        return "eager"
