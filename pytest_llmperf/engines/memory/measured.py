"""The GPU memory of servers, measured after each start and kept in the run folder for the plans of later sessions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from pytest_llmperf.engines.server import Server
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.process.supervisor import Supervised

FILE = "memory.json"  # in the folder of a server's log
SCHEMA = 1
GIB = 2**30
LOG_LINES = 5000
#: Flags that say how servers live together. The memory beside the KV cache does not depend on them.
OF_RESIDENCE = frozenset({
    "gpu_memory_utilization", "kv_cache_memory_bytes", "max_total_tokens", "enable_sleep_mode", "enable_memory_saver",
})


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """GPU memory of a server that has just started, on its fullest GPU.

    Args:
        held_bytes: of all its processes.
        kv_bytes: its KV cache.
        weights_bytes, graphs_bytes: weights and CUDA graphs by the engine's log; None if the log states none.
    """

    held_bytes: int
    kv_bytes: int
    weights_bytes: int | None = None
    graphs_bytes: int | None = None

    @property
    def beside_kv_bytes(self) -> int:
        """Memory of everything but the KV cache."""
        return max(0, self.held_bytes - self.kv_bytes)


def memory_key(spec: EngineSpec, gpu: str, version: str | None) -> dict[str, str]:
    """What the memory beside the KV cache depends on: GPU model, build, model and flags."""
    plain = replace(spec, flags=tuple(flag for flag in spec.flags if flag[0] not in OF_RESIDENCE), installation="")
    return {"gpu": gpu, "version": version or "unknown", "spec": str(plain)}


def memory_of(server: Server, held_bytes: int | None) -> MeasuredMemory | None:
    """The memory of a server; None if the driver does not state it, or nothing states the size of the KV cache."""
    process = server.unit.process
    if held_bytes is None or not isinstance(process, Supervised):
        return None
    sizes = logged_sizes(server.reader.memory_in_log, process.evidence(LOG_LINES).log_tail)
    stated = flags_of(server.spec).get("kv_cache_memory_bytes")
    kv_bytes = stated if isinstance(stated, int) else sizes.get("kv")
    if kv_bytes is None:
        return None
    return MeasuredMemory(held_bytes, kv_bytes, sizes.get("weights"), sizes.get("graphs"))


def logged_sizes(patterns: Mapping[str, str], lines: Sequence[str]) -> dict[str, int]:
    """Name → bytes, from the log of an engine. Of several ranks or graphs the largest size counts.

    Args:
        patterns: `Adapter.memory_in_log`.
        lines: the log.
    """
    sizes: dict[str, int] = {}
    for name, pattern in patterns.items():
        matches = [match for line in lines if (match := re.search(pattern, line))]
        if matches:
            sizes[name] = round(max(sum(map(float, match.groups())) for match in matches) * GIB)
    return sizes


def write_memory(folder: Path, key: Mapping[str, str], memory: MeasuredMemory) -> None:
    """Write the memory of a server into the folder of its log. A full disk is no error."""
    with suppress(OSError):
        content = {"schema": SCHEMA, **key, **asdict(memory)}
        write_whole(folder / FILE, f"{json.dumps(content, indent=1)}\n".encode())


class MemoryRecords:
    """What servers held after their starts, in this session and in earlier ones of the project.

    Args:
        runs_dir: folder of the run folders.
        version: the installed version of a spec's engine.
    """

    def __init__(self, runs_dir: Path, version: Callable[[EngineSpec], str | None]) -> None:
        self._runs_dir = runs_dir
        self._version = version

    @cached_property
    def _memories(self) -> dict[str, MeasuredMemory]:
        """Key as text → memory, of earlier sessions first."""
        return read_memories(self._runs_dir)

    def of(self, specs: Iterable[EngineSpec], gpu: str) -> dict[EngineSpec, MeasuredMemory]:
        """The measured specs among these, on this GPU model."""
        keys = {spec: as_text(memory_key(spec, gpu, self._version(spec))) for spec in specs}
        return {spec: self._memories[key] for spec, key in keys.items() if key in self._memories}

    def add(self, spec: EngineSpec, gpu: str, server: Server, held_bytes: int | None) -> None:
        """Keep what a server of this spec holds, in memory and beside the log of the server."""
        memory, process = memory_of(server, held_bytes), server.unit.process
        if memory is not None and isinstance(process, Supervised):
            key = memory_key(spec, gpu, self._version(spec))
            self._memories[as_text(key)] = memory
            write_memory(process.launch.run_dir, key, memory)


def read_memories(runs_dir: Path) -> dict[str, MeasuredMemory]:
    """Key as JSON → memory of the newest start, from the run folders, whose names sort by time."""
    memories: dict[str, MeasuredMemory] = {}
    for path in sorted(runs_dir.glob(f"*/servers/**/{FILE}")):
        with suppress(OSError, ValueError, TypeError, KeyError):  # of a later version, or damaged: measured again
            content = json.loads(path.read_bytes())
            sizes = {name: content[name] for name in MeasuredMemory.__dataclass_fields__}
            if all(isinstance(size, int | None) for size in sizes.values()):
                key = as_text({name: content[name] for name in ("gpu", "version", "spec")})
                memories[key] = MeasuredMemory(**sizes)
    return memories


def as_text(key: Mapping[str, str]) -> str:
    """A key of `read_memories`."""
    return json.dumps(dict(key), sort_keys=True)
