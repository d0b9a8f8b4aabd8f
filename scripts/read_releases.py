#!/usr/bin/env python3
"""Write the stored releases of an engine from its wheels: pytest_llmperf/engines/ENGINE/releases/VERSION.json.

    python scripts/read_releases.py vllm 0.26.0 0.32.0 0.33.0     (pip downloads the wheels)
    python scripts/read_releases.py vllm --wheels FOLDER 0.26.0   (FOLDER has wheels that were downloaded before)
    python scripts/read_releases.py vllm --check                  (compare stored versions with the wheels of the index)
    python scripts/read_releases.py vllm --newest                 (what the newest version of the index changed)

All stored versions of the engine must be named, because each file has the differences to the one before. `--check`
writes nothing, prints every difference, and ends with 1 if there is one. `--newest` writes nothing, too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_llmperf.engines.releases.rehearsal import listed
from pytest_llmperf.engines.releases.wheel import read_from_index, read_wheel
from pytest_llmperf.errors import UsageError
from pytest_llmperf.releases.changes import changes
from pytest_llmperf.releases.stored import (
    FOLDER,
    SECTIONS,
    Release,
    as_json,
    known_engines,
    release,
    version_numbers,
    versions,
)

ROOT = Path(__file__).resolve().parents[1] / "pytest_llmperf" / "engines"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=known_engines())
    parser.add_argument("versions", nargs="*", help="oldest first; with --check all stored versions by default")
    parser.add_argument("--wheels", type=Path, help="folder with downloaded wheels, or folders of them")
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--newest", action="store_true", help="list the changes of the newest version")
    arguments = parser.parse_args()
    named = sorted(arguments.versions or (versions(arguments.engine) if arguments.check else ()), key=version_numbers)
    try:
        if arguments.newest:
            print("\n".join(news(read_from_index(arguments.engine, "", say))))
        facts = [read(arguments.engine, version, arguments.wheels) for version in named]
    except UsageError as error:
        print(f"read_releases: {error}", file=sys.stderr)
        return 1
    if arguments.check:
        differences = [line for each in facts for line in differing(each)]
        print("\n".join(differences) or "no difference")
        return int(bool(differences))
    for earlier, each in zip([None, *facts], facts, strict=False):
        path = ROOT / arguments.engine / FOLDER / f"{each.version}.json"
        path.write_text(as_json(each, earlier), encoding="utf-8")
        print(path)
    return 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def news(newest: Release) -> list[str]:
    """What a version changed since the newest stored one."""
    stored = release(newest.engine, versions(newest.engine)[-1])
    found = changes(stored, newest) if stored is not None else []
    title = f"{newest.engine} {versions(newest.engine)[-1]} is stored, {newest.version} is the newest"
    return [f"{title}: {len(found)} changes", *listed(found)]


def read(engine: str, version: str, wheels: Path | None) -> Release:
    if wheels is None:
        return read_from_index(engine, version, say)
    found = sorted(wheels.rglob(f"{engine}-{version}-*.whl"))
    if not found:
        raise UsageError(f"{wheels} has no wheel of {engine} {version}.")
    return read_wheel(engine, version, found[0])


def differing(facts: Release) -> list[str]:
    """One line for each entry of the wheel that is not the stored entry."""
    stored = release(facts.engine, facts.version)
    if stored is None:
        return [f"{facts.engine} {facts.version} is not stored"]
    return [
        f"{facts.engine} {facts.version}, {section}: {name}: stored {before.get(name)}, in the wheel {now.get(name)}"
        for section in SECTIONS
        for before, now in [(getattr(stored, section), getattr(facts, section))]
        for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)
    ]


if __name__ == "__main__":
    sys.exit(main())
