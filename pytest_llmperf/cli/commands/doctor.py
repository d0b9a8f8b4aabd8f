"""Is this machine ready? Hardware, engines, models, suites and baselines; every problem with its remedy.

Starts no engine. Ends with 1 where there is a problem.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_llmperf.session.doctor.finding import Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suites", nargs="*", default=["suites"], help="where the suites are (default: suites)")
    parser.add_argument("--root", type=Path, default=Path(), help="of the project (default: this folder)")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.config.settings import read_settings
    from pytest_llmperf.errors import UsageError
    from pytest_llmperf.session.doctor import examine
    from pytest_llmperf.session.doctor.place import this_place
    from pytest_llmperf.session.doctor.suites import suites
    from pytest_llmperf.telemetry.hardware import detect

    root = arguments.root.absolute()
    if not root.is_dir():
        raise UsageError(f"--root {arguments.root}: there is no such folder.")
    place = this_place(root, read_settings(root), detect())
    found = [*examine(place), *suites(root, arguments.suites)]
    print_findings(found)
    return int(any(one.problem for one in found))


def print_findings(found: Iterable[Finding]) -> None:
    part = ""
    problems = 0
    for one in found:
        if one.part != part:
            part = one.part
            print(part)
        problems += one.problem
        print(f"  {'!' if one.problem else ' '} {one.text}")
        if one.problem:
            print(f"      → {one.remedy}")
    print(f"{problems} problem{'s' if problems != 1 else ''}" if problems else "ready")
