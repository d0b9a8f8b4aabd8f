"""What released versions of an engine know: options with types and defaults, metrics, variables, routes.

Each engine's folder has these facts as JSON, one file a version, made from the engine's own wheels by
`scripts/read_releases.py`. The first file is complete. Each later file has what the version changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Entries = Mapping[str, Mapping[str, Any]]
SECTIONS = ("flags", "metrics", "variables", "routes", "sources", "packages")
FOLDER = "releases"
DESCRIPTION = "reading.json"
ENGINES = Path(__file__).parents[1] / "engines"
NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Release:
    """One version of an engine. Every section maps a name to what is known of it.

    Args:
        flags: main name of an option, "--max-num-seqs" → `names` (further names), `off` (names that switch it off),
            `action`, `type`, `nargs`, `choices`, `default`, `required`, `dest`; absent where argparse's default holds.
        metrics: name in the source code → `kind` and the engine's own `labels`.
        variables: environment variable → `default`, where the source states one.
        routes: "POST /v1/completions" → nothing.
        sources: function that a table of this package cites → `digest` of its code.
        packages: required distribution → the pinned `version`.
    """

    engine: str
    version: str
    flags: Entries
    metrics: Entries
    variables: Entries
    routes: Entries
    sources: Entries
    packages: Entries

    def options(self) -> dict[str, str]:
        """Every name of an option on the command line → its main name; positionals are left out."""
        names: dict[str, str] = {}
        for main, entry in self.flags.items():
            if main.startswith("-"):
                names |= dict.fromkeys((main, *entry.get("names", ()), *entry.get("off", ())), main)
                if entry.get("action") == "boolean":
                    names |= {"--no-" + name[2:]: main for name in (main, *entry.get("names", ()))
                              if name.startswith("--")}
        return names


def known_engines() -> tuple[str, ...]:
    """Engines whose releases can be read."""
    return tuple(sorted(path.parent.parent.name for path in ENGINES.glob(f"*/{FOLDER}/{DESCRIPTION}")))


@cache
def description(engine: str) -> Mapping[str, Any]:
    """How wheels of an engine are read, what replaces its removed names, and which functions are cited; empty for an
    engine that nobody has described."""
    path = ENGINES / engine / FOLDER / DESCRIPTION
    parsed: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else NOTHING
    return parsed


@cache
def versions(engine: str) -> tuple[str, ...]:
    """The stored versions, oldest first; empty for an engine without."""
    names = (path.stem for path in (ENGINES / engine / FOLDER).glob("*.json") if path.name != DESCRIPTION)
    return tuple(sorted(names, key=version_numbers))


@cache
def release(engine: str, version: str) -> Release | None:
    """A stored version; None if it is not stored."""
    stored = versions(engine)
    if version not in stored:
        return None
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for each in stored[: stored.index(version) + 1]:
        text = (ENGINES / engine / FOLDER / f"{each}.json").read_text(encoding="utf-8")
        for name, entries in json.loads(text).items():
            merged = sections[name] | entries
            sections[name] = {key: value for key, value in merged.items() if value is not None}
    return Release(engine, version, **sections)


def as_json(facts: Release, earlier: Release | None) -> str:
    """The text of a stored file: what differs from the earlier version, one line an entry; null is gone."""
    parts = []
    for section in SECTIONS:
        now: Entries = getattr(facts, section)
        past: Entries = getattr(earlier, section) if earlier is not None else {}
        changed: dict[str, Any] = {name: entry for name, entry in now.items() if past.get(name) != entry}
        changed |= dict.fromkeys(past.keys() - now.keys())
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(changed[name], sort_keys=True, ensure_ascii=False)}"
                           for name in sorted(changed))
        parts.append(f' "{section}": {{\n{lines}\n }}' if lines else f' "{section}": {{}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def version_numbers(version: str) -> tuple[int, ...]:
    """Numbers by which versions are ordered.

    >>> version_numbers("0.32.0+cpu") < version_numbers("0.33.0")
    True
    """
    return tuple(map(int, re.findall(r"\d+", version)[:4]))


def build_of(engine: str, version: str | None) -> Release | None:
    """The stored version of a build, "0.32.0" for "0.32.0+cpu"; None if that version is not stored."""
    numbers = version_numbers(version or "")[:3]
    return next((release(engine, each) for each in versions(engine) if version_numbers(each)[:3] == numbers), None)


def untested(engine: str, version: str | None) -> str:
    """A note on a version that is not stored; "" for a stored version, an unknown one, and an engine without any.

    >>> untested("vllm", "0.33.0"), untested("transformers", "5.0")
    ('', '')
    """
    if version is None or not versions(engine) or build_of(engine, version) is not None:
        return ""
    newest, this = versions(engine)[-1], ".".join(map(str, version_numbers(version)[:3]))
    return (f"{engine} {version} is none of the versions that this package knows ({', '.join(versions(engine))}); "
            f"llmperf engine-changes {engine} {newest} {this} lists what is different")
