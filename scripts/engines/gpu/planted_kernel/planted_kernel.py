"""A regression of known size for vLLM: a GPU kernel of fixed length in front of every step.

vLLM loads this module as a general plugin when its folder is on the server's PYTHONPATH. LLMPERF_PLANTED_US is the
length of the kernel in microseconds, LLMPERF_PLANTED_SM_MHZ the clock of the GPU's processors (an H200 decodes at
1980 MHz). Nothing is planted where LLMPERF_PLANTED_US is missing or 0.
"""

from __future__ import annotations

import os


def register() -> None:
    """Wrap `LoadProcess.execute_model` of vLLM's V1 GPU worker; vLLM calls this in each of its processes."""
    length_us = float(os.environ.get("LLMPERF_PLANTED_US", "0"))
    if length_us <= 0:
        return
    import torch
    from vllm.v1.worker.gpu_worker import Worker

    cycles = round(length_us * float(os.environ.get("LLMPERF_PLANTED_SM_MHZ", "1980")))
    execute_model = Worker.execute_model

    def execute_model_after_kernel(self: object, *args: object, **kwargs: object) -> object:
        torch.cuda._sleep(cycles)
        return execute_model(self, *args, **kwargs)

    Worker.execute_model = execute_model_after_kernel
    print(f"planted_kernel: {cycles} GPU cycles ({length_us} us) before each step", flush=True)
