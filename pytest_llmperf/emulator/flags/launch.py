"""The result of a parsed command line: the configuration of the engine and of its server."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.cost.shape import UnknownModel, read_shape
from pytest_llmperf.emulator.flags.parser import StartError
from pytest_llmperf.emulator.quantities import UsageError
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.kinds.rows import HardwareKind, kind_of_row
from pytest_llmperf.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Machine:
    """The emulated hardware."""

    gpu: HardwareKind
    gpus: int = 1

    def check(self, tensor_parallel: int, data_parallel: int, groups: int = 1) -> None:
        """Refuse more parallelism than there are GPUs.

        Raises:
            UsageError: names both numbers.
        """
        if groups > 1 and data_parallel > 1:
            raise UsageError("a prefill/decode split cannot be emulated together with data parallel.")
        needed = tensor_parallel * data_parallel * groups
        if needed > self.gpus:
            halves = f" × {groups} (prefill and decode)" if groups > 1 else ""
            raise UsageError(
                f"tensor parallel {tensor_parallel} × data parallel {data_parallel}{halves} needs {needed} GPUs, and "
                f"the emulated machine has {self.gpus}: lower the parallelism. Only "
                f"`python -m pytest_llmperf.emulator` by itself takes --gpus {needed}."
            )


def machine(hardware: str, gpus: int, row: str | None = None) -> Machine:
    """The machine by its kind.

    Args:
        hardware: name of the kind.
        gpus: number of GPUs.
        row: JSON object, the row of a kind that a project defines; None for a kind of this package.

    Raises:
        UsageError: the kind is unknown, or the row is wrong.
    """
    if row is not None:
        try:
            return Machine(kind_of_row(hardware, json.loads(row)), gpus)
        except (ValueError, AttributeError) as error:
            raise UsageError(f"--hardware-row: {hardware}: {error}.") from error
    if hardware not in GPU_KINDS:
        raise UsageError(f"--hardware {hardware}: it can be {', '.join(GPU_KINDS)}.")
    return Machine(GPU_KINDS[hardware], gpus)


@dataclass(frozen=True, slots=True)
class Launch:
    """One emulated server.

    Args:
        config: the resolved configuration.
        host, port: address of the server.
        model: model name of the command line.
        served_names: model names that a request may use. Answers carry the first name.
        cached_details: whether the usage contains the number of cached prompt tokens.
        usage_always: whether streams end with a usage even without a request for it.
        tokenizer: whether the server has a tokenizer. Without a tokenizer prompts must be token ids, and texts are
            empty.
        incremental: whether SGLang's native stream sends only new tokens instead of all tokens so far.
        metrics: whether the server has a /metrics page.
        utilization: share of the GPU's memory.
        build: suffix of the version if coefficients were fitted to a host.
        facts: further resolved values that the server reports, with vLLM's names.
    """

    config: EngineConfig
    host: str
    port: int
    model: str
    served_names: tuple[str, ...]
    cached_details: bool = False
    usage_always: bool = False
    tokenizer: bool = True
    incremental: bool = False
    metrics: bool = True
    utilization: float = 0.92
    build: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)

    def request_id(self, number: int) -> str:
        """The id of request `number`, which no other server of this host gives."""
        return f"{os.getpid():08x}{number:024x}"


def served_shape(model: str, quantization: str | None) -> ModelShape:
    """The shape of a model that is served with the flag `quantization`.

    Raises:
        StartError: the model is unknown, or it is published with quantised weights and the flag names another format.
    """
    try:
        shape = read_shape(model)
    except UnknownModel as error:
        raise StartError(str(error)) from None
    if shape.quantization is not None and quantization is not None:
        raise StartError(
            f"Quantization method specified in the model config ({shape.quantization.method}) does not match the "
            f"quantization method specified in the `quantization` argument ({quantization})."
        )
    return shape
