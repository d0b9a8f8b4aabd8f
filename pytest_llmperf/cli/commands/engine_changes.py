"""List what changes between two versions of an engine: what touches the suites, and everything else.

Flags, defaults, metrics, variables, routes and required packages come from the wheels of both versions. Versions that
this package does not store are downloaded with pip and read; nothing of them is installed or started. The exit code is
1 if a test uses something that the newer version no longer has.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli.output import remark, say
from pytest_llmperf.engines.releases.rehearsal import listed, rehearse, uses_of, uses_of_package
from pytest_llmperf.engines.releases.wheel import check, release_of
from pytest_llmperf.releases.changes import changes
from pytest_llmperf.releases.stored import ENGINES

CACHE = ".llmperf/releases"


ARGUMENTS = {
    "engine": {"help": "vllm, sglang or lmcache"},
    "older": {"help": "version before the upgrade, such as 0.26.0"},
    "newer": {"help": "version after the upgrade"},
    "suites": {"nargs": "*", "type": Path, "help": "files and folders of the suites (default: suites)"},
    "--cache": {"type": Path, "default": Path(CACHE), "metavar": "FOLDER",
                "help": f"for versions that were read (default: {CACHE})"},
}


def run(arguments: argparse.Namespace) -> int:
    import pytest_llmperf
    engine = arguments.engine
    check(engine, arguments.older, arguments.newer)
    suites = arguments.suites or [path for path in [Path("suites")] if path.is_dir()]
    not_flags = frozenset(pytest_llmperf.__all__) - {"vllm", "sglang", "LMCache"}
    tests = [each for each in uses_of(suites, not_flags) if each.is_on(engine)]
    releases = [release_of(engine, version, arguments.cache, remark) for version in (arguments.older, arguments.newer)]
    touches, others = rehearse(changes(*releases), tests, uses_of_package(engine, ENGINES / engine))
    place = ", ".join(map(str, suites)) or "no suites"
    say(f"{engine} {arguments.older} → {arguments.newer}: {len(touches)} differences touch {len(tests)} tests of "
        f"{place}, {len(others)} do not.")
    say(f"\nWhat touches {place}")
    for touch in sorted(touches, key=lambda each: not each.breaks):
        say(f"  {'!' if touch.breaks else ' '} {touch}")
    say("\nEvery other difference")
    say("\n".join(listed(others)))
    return int(any(touch.breaks for touch in touches))
