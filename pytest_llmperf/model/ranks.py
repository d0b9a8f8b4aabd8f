"""How many ranks a server has, as its flags say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

# Flags of vLLM and SGLang. SGLang takes --tp and --dp as well; its --pp may be the beginning of several flags.
TENSOR = ("tensor_parallel_size", "tp_size", "tp")
PIPELINE = ("pipeline_parallel_size", "pp_size")
DATA = ("data_parallel_size", "dp_size", "dp")


def size_of(flags: Mapping[str, object], names: Collection[str], default: int = 1) -> int:
    """Value of the first flag of `names` that is set. The default replaces a missing or non-numeric value ("auto")."""
    size = next((flags[name] for name in names if name in flags), default)
    return size if isinstance(size, int) and size > 0 else default


def gpus_of(flags: Mapping[str, object]) -> int:
    """GPUs of a server; with SGLang's DP attention the data-parallel ranks share those of tensor parallelism."""
    attention = flags.get("enable_dp_attention") is True
    return prod(size_of(flags, names) for names in ((TENSOR, PIPELINE) if attention else (TENSOR, PIPELINE, DATA)))
