"""The measured runs, and the deployment that each of them had."""

from __future__ import annotations

import csv
import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.cost.capacity import DoesNotFit, kv_blocks, sglang_utilization
from pytest_llmperf.emulator.cost.shape import read_shape
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.shapes import Dtype

DATA = Path(__file__).parents[1] / "data" / "served_h100_h200.csv"

# Implausibly fast: faster than the datasheet allows.
BAD_MODELS = {("nvidia/Llama-3.1-8B-Instruct-FP8", "h200")}
UNLIMITED = 10_000_000  # tokens, where the layout that the file gives cannot hold the weights
DENSE = {"llama-3.1-8b", "llama-3.1-70b", "qwen3-32b"}


@dataclass(frozen=True)
class Row:
    """One measured run in a closed loop.

    Args:
        id, backend, version, model, source: as in the file.
        gpu: its key in GPU_KINDS.
        weights: bfloat16 where the file leaves the precision open.
        input_tokens, output_tokens: nominal lengths.
        spread: the lowest multiple of them that was drawn, 1 where all are equal.
        concurrency: requests in flight; the batch size where the file leaves that open, which `stated` tells.
        tensor_parallel: GPUs that share one sequence's attention.
        gpus: all of the deployment.
        expert_parallel: whether experts are spread whole.
        ttft_ms, tpot_ms: means over the run.
    """

    id: str
    backend: str
    version: str
    model: str
    source: str
    gpu: str
    weights: str
    input_tokens: int
    output_tokens: int
    spread: float
    concurrency: int
    stated: bool
    tensor_parallel: int
    gpus: int
    expert_parallel: bool
    ttft_ms: float
    tpot_ms: float

    @property
    def configuration(self) -> tuple[str, ...]:
        """What a fold keeps together: rows that differ in their load only."""
        names = (self.model, self.gpu, self.backend, self.version, self.weights)
        return (*names, str(self.tensor_parallel), str(self.gpus), str(self.expert_parallel))

    @property
    def dense(self) -> bool:
        return read_shape(self.model).name in DENSE

    @property
    def inferencex(self) -> bool:
        """Whether the row is from the public nightly benchmark InferenceX; all other rows are from NVIDIA's
        comparison."""
        return "/Users/" not in self.source

    @property
    def in_step(self) -> bool:
        """Whether requests of equal lengths stay together: no decode runs while a prompt waits."""
        return self.spread == 1.0 and self.backend == "sglang" and not self.config.mixed_chunk

    @cached_property
    def saturated(self) -> bool:
        """Whether the KV cache cannot hold all requests at their full length: TTFT is then queueing."""
        config = self.config
        held = config.num_blocks * config.block_size * config.data_parallel
        return self.concurrency * (self.mean_input + self.mean_output) > held

    @property
    def mean_input(self) -> float:
        return self.input_tokens * (1 + self.spread) / 2

    @property
    def mean_output(self) -> float:
        return self.output_tokens * (1 + self.spread) / 2

    @cached_property
    def config(self) -> EngineConfig:
        """The engine as it was run, as far as that is known or inferred; docs/emulator_accuracy.md says which."""
        shape, gpu, tp = read_shape(self.model), GPU_KINDS[self.gpu], self.tensor_parallel
        engine: Literal["vllm", "sglang"] = "sglang" if self.backend == "sglang" else "vllm"
        weights: Dtype = "fp8" if self.weights == "fp8" else "bfloat16"
        kv: Dtype = "fp8" if self._kv_fp8 else "bfloat16"
        block, budget = 16 if engine == "vllm" else 1, self._budget
        blocks = UNLIMITED // block
        with suppress(DoesNotFit):
            blocks = kv_blocks(shape, gpu, tp, weights, kv, block, self._utilization, budget, engine=engine,
                               weight_gpus=self.gpus)  # fmt: skip
        return EngineConfig(
            engine=engine, shape=shape, gpu=gpu, max_model_len=32768, max_num_batched_tokens=budget, max_num_seqs=1024,
            block_size=block, num_blocks=blocks, weights=weights, kv=kv, tensor_parallel=tp,
            prefix_caching=engine == "sglang" and not self.inferencex,
            data_parallel=max(1, self.gpus // tp), expert_parallel=self.expert_parallel,
            async_scheduling=engine == "sglang" or self.inferencex,
            mixed_chunk=engine == "sglang" and not self.inferencex and self.version != "0.5.1.post1",
        )  # fmt: skip

    @property
    def _budget(self) -> int:
        if self.inferencex or self.backend == "sglang":
            return 8192
        return self.input_tokens + self.concurrency + 1500

    @property
    def _utilization(self) -> float:
        if not self.inferencex:
            return 0.8 if self.dense else 0.9
        return 0.9 if self.backend != "sglang" else sglang_utilization(GPU_KINDS[self.gpu], 8192, self.gpus)

    @property
    def _kv_fp8(self) -> bool:
        if self.weights != "fp8" or self.backend == "sglang":
            return False
        return self.backend == "trtllm" or (self.inferencex and self.gpu == "h200")


def read_rows(path: Path = DATA) -> list[Row]:
    """All rows but the known bad ones."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [_row(record) for record in csv.DictReader(file)]
    return [row for row in rows if (row.model, row.gpu) not in BAD_MODELS]


def sha256_of(path: Path = DATA) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _row(record: dict[str, str]) -> Row:
    tp, gpus, experts = _layout(record)
    return Row(
        id=record["id"],
        backend=record["backend"],
        version=record["backend_version"] or "unknown",
        model=record["model"],
        source=record["source"],
        gpu=record["gpu"],
        weights="fp8" if record["precision"] == "fp8" else "bfloat16",
        input_tokens=int(record["input_tokens"]),
        output_tokens=int(record["output_tokens"]),
        spread=0.8 if "/Users/" not in record["source"] else 1.0,
        concurrency=int(float(record["concurrency"] or record["batch_size"])),
        stated=bool(record["concurrency"]),
        tensor_parallel=tp,
        gpus=gpus,
        expert_parallel=experts,
        ttft_ms=float(record["mean_ttft_ms"]),
        tpot_ms=float(record["mean_tpot_ms"]),
    )


def _layout(record: dict[str, str]) -> tuple[int, int, bool]:
    """(tensor parallel, GPUs, experts spread whole). Some rows give a product of two ways to use the same GPUs."""
    tp = int(record["tensor_parallel"])
    cut, whole = int(record["moe_tensor_parallel"]), int(record["moe_expert_parallel"])
    if cut > 1 and whole > 1 and tp == cut * whole:
        tp = max(cut, whole)
        return tp, tp, True
    replicas = int(float(record["attention_data_parallel"] or 1))
    if replicas == tp > 1 and whole == tp * replicas:
        return tp, tp, True
    return tp, max(tp, cut * whole), whole > 1
