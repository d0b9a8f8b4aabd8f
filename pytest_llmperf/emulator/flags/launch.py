"""What a command line comes to: the engine's configuration and the server around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_llmperf.emulator.cost.gpu import GPUS
from pytest_llmperf.emulator.quantities import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_llmperf.emulator.config import EngineConfig
    from pytest_llmperf.emulator.cost.gpu import Gpu


@dataclass(frozen=True, slots=True)
class Machine:
    """The emulated hardware."""

    gpu: Gpu
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


def machine(hardware: str, gpus: int) -> Machine:
    """The machine by its kind.

    Raises:
        UsageError: no such kind.
    """
    if hardware not in GPUS:
        raise UsageError(f"--hardware {hardware}: it can be {', '.join(GPUS)}.")
    return Machine(GPUS[hardware], gpus)


@dataclass(frozen=True, slots=True)
class Launch:
    """One emulated server.

    Args:
        config: what the engine resolved.
        host, port: where it listens.
        model: as the command line names it.
        served_names: model names that a request may use. Answers carry the first name.
        cached_details: whether usage tells how many prompt tokens were cached.
        usage_always: whether streams end with usage unasked.
        tokenizer: False: prompts must be token ids, and texts are empty.
        incremental: SGLang's native stream sends what is new instead of all so far.
        metrics: whether there is a /metrics page.
        utilization: share of the GPU's memory.
        facts: further resolved values that the server tells of itself, by vLLM's names.
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
    facts: Mapping[str, object] = field(default_factory=dict)
