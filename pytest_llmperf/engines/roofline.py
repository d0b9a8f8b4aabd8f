"""How fast decoding can be at all: the memory's bandwidth bounds it, whatever the engine does."""

from __future__ import annotations

from pytest_llmperf.engines.models import SHAPES
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.datasheet import MEMORY_BANDWIDTH
from pytest_llmperf.workload.arguments import integer


def decode_floor_ms(model: str, kind: str, *, gpus: int = 1) -> float:
    """The least time of a step that decodes one token of one sequence, in ms: weights that it reads ÷ bandwidth.

    The memory side of the roofline model (Williams, Waterman and Patterson, CACM 52(4), 2009). A step at batch size 1
    does about one multiplication per weight, some hundred times fewer than the GPU could do meanwhile, so reading
    decides. Read are all weights that the token passes (of routed experts the active ones) except the embedding table,
    of which it needs one row; where the output projection is that table, it is read once. The KV cache of the one
    sequence comes on top, so the floor is a little lower than what can be reached.

    Args:
        model: a shape of the registry, with weights as published there (bfloat16).
        kind: of the GPU.
        gpus: over which the weights are cut evenly (tensor parallel).

    Raises:
        SpecError: nothing is known of the model or the kind, or that is no number of GPUs.
    """
    count = integer("decode_floor_ms", "gpus", gpus)
    if model not in list(SHAPES) or kind not in list(MEMORY_BANDWIDTH):
        raise SpecError(f"decode_floor_ms({model!r}, {kind!r}): models are {', '.join(SHAPES)}, and kinds "
                        f"{', '.join(MEMORY_BANDWIDTH)}.")
    return SHAPES[model].decode_bytes / count / MEMORY_BANDWIDTH[kind] * 1e3
