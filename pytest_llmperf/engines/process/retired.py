"""Refuses what an installed version of an engine has removed, by the stored releases and the engine's adapter."""

from __future__ import annotations

from collections.abc import Collection

from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.versions import retired
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.releases.stored import version_numbers


def replacement(engine: str, name: str, flags: Collection[str]) -> str | None:
    """The end of the sentence "vllm 0.33.0 has no flag --x", if the flag was removed, or is newer than the version.

    Args:
        name: with underscores.
        flags: options of the version, e.g. "--max-num-seqs".
    """
    removed = {**retired(engine, "flags"), **adapter_of(engine).retired_flags}
    if name in removed:
        return str(removed[name])
    older = [old for old, entry in removed.items()
             if entry.instead.partition("=")[0] == name and "--" + old.replace("_", "-") in flags]
    return f". Write {older[0]}, its older name." if older else None


def check_variables(spec: EngineSpec, version: str | None) -> None:
    """Refuse a variable that the version no longer reads; otherwise a server would start without its effect, or end.

    Args:
        version: None for the emulator, which follows the newest version.

    Raises:
        SpecError: names what replaces the variable.
    """
    removed = {**retired(spec.engine, "variables"), **adapter_of(spec.engine).retired_variables} if spec.env else {}
    for name in dict(spec.env):
        entry = removed.get(name)
        if entry is not None and (version is None or version_numbers(version) >= version_numbers(entry.since)):
            release = f"{spec.engine} {version}" if version else spec.engine
            raise SpecError(f"{spec.engine}({spec.model!r}, env={{{name!r}: …}}): {release} reads "
                            f"no variable {name}{entry} No server was started.")
