"""Which suites would run here, and why others would not: pytest is asked, with everything but running."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from pytest_llmperf.doctor.findings import Finding
from pytest_llmperf.process.places import temporary_folder

PART = "suites"
DEFAULT = "suites"
NO_GPU = "this machine has no GPU"  # in the reason of a skipped test
TIMEOUT_S = 120.0
ASK = ("--setup-plan", "-p", "no:cacheprovider")  # reaches every skip and starts nothing


def suites(root: Path, paths: Sequence[str]) -> Iterator[Finding]:
    """Counts, with the reasons of those that would be skipped.

    Args:
        paths: files and folders that the user named; empty for the folder `suites`, which a project need not have.
    """
    if not paths and not (root / DEFAULT).exists():
        yield Finding(PART, f"no folder {DEFAULT}/ here; llmperf doctor PATH examines the suites in PATH")
        return
    paths = paths or [DEFAULT]
    if absent := [path for path in paths if not (root / path).exists()]:
        yield Finding(PART, f"{', '.join(absent)}: not there", "llmperf doctor PATH: say where the suites are")
        return
    with tempfile.TemporaryDirectory(prefix="llmperf-doctor-", dir=temporary_folder()) as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", *paths, *ASK, f"--junitxml={report}"]
        try:
            completed = subprocess.run(
                command, cwd=root, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            yield Finding(
                PART, f"pytest did not collect them within {TIMEOUT_S:g} s", f"see: {_collect_command(paths)}"
            )
            return
        if not report.is_file():
            output_lines = (completed.stderr or completed.stdout).strip().splitlines()
            yield Finding(
                PART,
                f"pytest refuses: {output_lines[-1] if output_lines else f'exit code {completed.returncode}'}",
                f"see: {_collect_command(paths)}",
            )
            return
        yield from _read(ElementTree.parse(report).getroot(), paths)


def _read(report: ElementTree.Element, paths: Sequence[str]) -> Iterator[Finding]:
    cases = list(report.iter("testcase"))
    broken = [case for case in cases if case.find("error") is not None]
    reasons = Counter(skip.get("message", "") for case in cases if (skip := case.find("skipped")) is not None)
    would = len(cases) - len(broken) - sum(reasons.values())
    without_gpu = bool(reasons) and not broken and all(NO_GPU in reason for reason in reasons)
    yield Finding(PART, f"{would} of {len(cases)} tests would run",
                  "" if would or without_gpu else "run on other hardware, or try them on the emulator: --emulate h200")
    for reason, count in sorted(reasons.items()):
        yield Finding(PART, f"{count} would not: {reason}")
    for case in broken:
        yield Finding(PART, f"{case.get('classname')}.{case.get('name')} is broken".lstrip("."),
                      f"see: {_collect_command(paths)}")


def _collect_command(paths: Sequence[str]) -> str:
    return f"pytest {' '.join(paths)} --collect-only"
