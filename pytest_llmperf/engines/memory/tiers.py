"""KV cache tiers, and the combinations of tiers that an engine can keep while it empties the other tiers."""

from __future__ import annotations

from collections.abc import Collection

from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.engine import EngineSpec

TIERS = ("engine", "l1", "l2")


def check_keep(spec: EngineSpec, keep: Collection[str], *, fresh: bool, starts: int = 1) -> None:
    """Raise SpecError if the engine cannot keep these tiers, or can keep these tiers only together with others."""
    anew = "fresh=True" if fresh else f"starts={starts}" if starts > 1 else ""
    if not spec.is_endpoint and (problem := _problem(spec, set(keep), anew)) is not None:
        shown = f"{anew}, " if anew else ""
        raise SpecError(f"perf.measure({spec}, …, {shown}keep={tuple(keep)}): {problem}")


def _problem(spec: EngineSpec, keep: set[str], anew: str) -> str | None:
    if anew and "l1" in keep and (spec.lmcache is None or spec.lmcache.in_process):
        return (
            "what an engine has in host memory ends with it; only an LMCache server beside it outlives a fresh start. "
            f"Attach one with .with_lmcache(), or leave out {anew}."
        )
    memory = keep & {"engine", "l1"}
    return adapter_of(spec.engine).tiers_in_one(spec, *memory) if len(memory) == 1 else None
