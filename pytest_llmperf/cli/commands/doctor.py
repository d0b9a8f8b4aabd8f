"""Check whether this machine is ready: hardware, engines, models, suites and baselines; each problem with its remedy.

The command starts no engine. The exit code is 1 if there is a problem. A machine without a GPU is no problem.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from os.path import relpath
from pathlib import Path

from pytest_llmperf.cli.output import say
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.doctor.findings import Finding, examine, this_place
from pytest_llmperf.doctor.suites import suites
from pytest_llmperf.errors import UsageError
from pytest_llmperf.telemetry.hardware import detect

ARGUMENTS = {
    "suites": {"nargs": "*", "help": "where the suites are (default: suites in the project's root)"},
    "--root": {"type": Path, "help": "folder of the project, where paths of suites start (default: found upwards)"},
}


def run(arguments: argparse.Namespace) -> int:
    root, paths = arguments.root, arguments.suites
    if root is None:
        root = project_root()
        paths = [relpath(path, root) for path in paths]
    if not root.is_dir():
        raise UsageError(f"--root {arguments.root}: there is no such folder.")
    root = root.absolute()
    place = this_place(root, read_settings(root), detect())
    findings = [*examine(place), *suites(root, paths)]
    print_findings(findings)
    return int(any(finding.problem for finding in findings))


def print_findings(findings: Iterable[Finding]) -> None:
    part = ""
    problems = 0
    for finding in findings:
        if finding.part != part:
            part = finding.part
            say(part)
        problems += finding.problem
        say(f"  {'!' if finding.problem else ' '} {finding.text}")
        if finding.problem:
            say(f"      → {finding.remedy}")
    say(f"{problems} problem{'s' if problems != 1 else ''}" if problems else "no problems")
