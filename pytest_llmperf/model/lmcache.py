"""LMCache beside an engine: what to attach, immutable and comparable by value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf

from pytest_llmperf.errors import SpecError, did_you_mean

POLICIES = ("LRU", "ARC", "IsolatedLRU", "noop")


@dataclass(frozen=True, slots=True)
class LMCache:
    """A KV cache below the engine's own, in tiers.

    Args:
        chunk_size: tokens that are stored and looked up together; shorter prompts are never stored.
        l1_size_gb: host memory, GiB.
        l2_path: folder of the disk tier, relative to the project; it outlives every process. None: no disk tier.
        eviction_policy: which chunks leave a full L1.
        in_process: inside the engine's own process (LMCacheConnectorV1) instead of a server beside it.
    """

    chunk_size: int = 256
    l1_size_gb: float = 4.0
    l2_path: str | None = None
    eviction_policy: str = "LRU"
    in_process: bool = False

    def __str__(self) -> str:
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return ", ".join(f"{name}={value!r}" for name, (value, default) in values.items() if value != default)


def lmcache_of(options: Mapping[str, object]) -> LMCache:
    """LMCache with the given options. Unknown options are an error here, although LMCache itself only warns.

    Raises:
        SpecError: an option is unknown, or a value is invalid.
    """
    field_names = [field.name for field in fields(LMCache)]
    for name in options:
        if name not in field_names:
            raise SpecError(f"with_lmcache({name}=…): there is no such option.{did_you_mean(name, field_names)} Known: "
                            f"{', '.join(field_names)}.")
    made = LMCache(**options)  # type: ignore[arg-type]  # checked next
    problem = _problem(dict(options))
    if problem is not None:
        raise SpecError(f"with_lmcache({made}): {problem}")
    return made


def _problem(options: Mapping[str, object]) -> str | None:
    """Why an option is invalid; None if all options are valid. A missing option has its default value."""
    chunk, size, path = options.get("chunk_size", 1), options.get("l1_size_gb", 1), options.get("l2_path")
    if type(chunk) is not int or chunk < 1:
        return "chunk_size is a number of tokens, at least 1."
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < inf:
        return "l1_size_gb is a size in GiB above 0."
    if path is not None and (not isinstance(path, str) or not path):
        return "l2_path is a folder, as text."
    if options.get("eviction_policy", POLICIES[0]) not in POLICIES:
        return f"eviction_policy is one of {', '.join(POLICIES)}."
    if not isinstance(options.get("in_process", False), bool):
        return "in_process is True or False."
    return None
