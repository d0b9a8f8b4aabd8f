"""Refuses what an installed version of an engine has removed, by the data in the folder of the engine."""

from __future__ import annotations

import re
from collections.abc import Collection

from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.engine import EngineSpec


def replacement(engine: str, name: str, flags: Collection[str]) -> str | None:
    """The end of the sentence "vllm 0.33.0 has no flag --x", if the flag was removed, or is newer than the version.

    Args:
        name: with underscores.
        flags: options of the version, e.g. "--max-num-seqs".
    """
    retired = adapter_of(engine).retired_flags
    if name in retired:
        return str(retired[name])
    older = [old for old, entry in retired.items()
             if entry.instead.partition("=")[0] == name and "--" + old.replace("_", "-") in flags]
    return f". Write {older[0]}, its older name." if older else None


def check_variables(spec: EngineSpec, version: str | None) -> None:
    """Refuse a variable that the version no longer reads; otherwise a server would start without its effect, or end.

    Args:
        version: None for the emulator, which follows the newest version.

    Raises:
        SpecError: names what replaces the variable.
    """
    retired = adapter_of(spec.engine).retired_variables
    for name in dict(spec.env):
        entry = retired.get(name)
        if entry is not None and (version is None or _numbers(version) >= _numbers(entry.since)):
            release = f"{spec.engine} {version}" if version else spec.engine
            raise SpecError(f"{spec.engine}({spec.model!r}, env={{{name!r}: …}}): {release} reads "
                            f"no variable {name}{entry} No server was started.")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
