"""The spec of a server with static batches."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmperf.engines.spec import Variable, build_spec
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.engine import EngineSpec, Flag


def transformers(
    model: str, *, max_batch_size: int = 8, batch_wait_ms: float = 50, dtype: str = "bfloat16",
    env: Mapping[str, Variable] | None = None,
) -> EngineSpec:  # fmt: skip
    """Describe a server that answers with Hugging Face `generate` in static batches.

    Use it as side B of a claim about continuous batching. The server pads the prompts of a batch to one length and
    computes every row until the longest answer ends. It runs in vLLM's Python environment.

    Args:
        model: a shape name with real weights ("tiny"), a path, or a hub id.
        max_batch_size: most rows of a batch.
        batch_wait_ms: how long a batch waits for its rows, in milliseconds, once the model is free.
        dtype: number format by its PyTorch name.
        env: as of `vllm`.

    Raises:
        SpecError: the model or an argument is not valid.
    """
    if isinstance(max_batch_size, bool) or not isinstance(max_batch_size, int) or max_batch_size < 1:
        raise SpecError(f"transformers({model!r}, max_batch_size={max_batch_size!r}): write a whole number of at least "
                        "1. No server was started.")
    if isinstance(batch_wait_ms, bool) or not isinstance(batch_wait_ms, int | float) or not batch_wait_ms >= 0:
        raise SpecError(f"transformers({model!r}, batch_wait_ms={batch_wait_ms!r}): write a number of milliseconds of "
                        "at least 0. No server was started.")
    flags: dict[str, Flag] = {"max_batch_size": max_batch_size, "batch_wait_ms": batch_wait_ms, "dtype": dtype}
    return build_spec("transformers", model, {} if env is None else env, flags)
