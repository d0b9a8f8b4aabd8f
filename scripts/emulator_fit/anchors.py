"""Single steps that this project measured itself: Llama-3.1-8B in bfloat16 on H200 (docs/measured/h200.md).

vLLM 0.26.0: medians of the gaps between tokens in quiet stretches, and of those that hold a prefill. SGLang 0.5.15 with
Triton attention: one stream, and sixteen. They are newer than every dense run in the file of served runs, and tell the
overheads of today's engines apart from those of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.cost.coefficients import Coefficients
from pytest_llmperf.emulator.cost.shape import read_shape
from pytest_llmperf.emulator.cost.step_time import StepLoad, StepTime
from pytest_llmperf.kinds import GPU_KINDS


@dataclass(frozen=True, slots=True)
class Anchor:
    """A step of `decodes` sequences at a mean `context`, with `chunk` tokens of a prompt beside, `before` done."""

    engine: str
    milliseconds: float
    decodes: int
    context: int
    tensor_parallel: int = 1
    overlapped: bool = True
    chunk: int = 0
    before: int = 0

    def predicted_ms(self, coefficients: Coefficients) -> float:
        config = EngineConfig(
            engine="sglang" if self.engine == "sglang" else "vllm",
            shape=read_shape("llama-3.1-8b"), gpu=GPU_KINDS["h200"], max_model_len=16384, max_num_batched_tokens=8192,
            max_num_seqs=1024, block_size=16, num_blocks=57489, tensor_parallel=self.tensor_parallel,
            async_scheduling=self.overlapped,
        )  # fmt: skip
        rows = self.decodes + (self.chunk > 0)
        read = self.decodes * self.context + self.before + self.chunk
        pairs = self.decodes * self.context + self.chunk * (self.before + (self.chunk + 1) / 2)
        load = StepLoad(rows, self.decodes + self.chunk, self.chunk, rows, read, pairs)
        return 1e3 * float(StepTime(config, coefficients).seconds(load))


ANCHORS = (
    Anchor("vllm", 4.87, 1, 4070),
    Anchor("vllm", 5.05, 16, 164),
    Anchor("vllm", 5.26, 6, 1090),
    Anchor("vllm", 3.70, 4, 1090, tensor_parallel=2),
    Anchor("vllm", 6.43, 1, 1150, overlapped=False),
    Anchor("vllm", 188.0, 16, 164, chunk=7800),
    Anchor("vllm", 26.5, 16, 164, chunk=1008, before=2900),
    Anchor("vllm", 31.6, 16, 164, chunk=1008, before=6800),
    Anchor("sglang", 5.1, 1, 1088),
    Anchor("sglang", 5.7, 16, 1088),
)
# Measured later, and left out: with them in the fit the claims of other hosts were predicted no better.
CROWDS = (
    Anchor("vllm", 6.27, 64, 384),
    Anchor("vllm", 4.23, 64, 384, tensor_parallel=2),
    Anchor("vllm", 12.6, 192, 128, overlapped=False),
)
