"""How often verdicts are wrong on the emulator.

Runs the suites thousands of times in virtual time, each time with other noise: with nothing planted (every FAIL is a
false alarm), and with known slowdowns and faults (every PASS is a miss). Writes a page of tables with Clopper-Pearson
intervals, and beside it a row per suite run (FILE.jsonl). Interrupted, the same command goes on where it stopped.

    llmperf calibrate --emulate h200 --suite-runs 10000 --faults 200 --out docs/calibration.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

OUT = ".llmperf/calibration.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `cli.parser`."""
    parser.add_argument("suites", nargs="*", default=["suites"], help="tests to run, as pytest takes them (suites)")
    parser.add_argument("--emulate", metavar="KIND", required=True, help="l4, a100, h100 or h200")
    parser.add_argument("--suite-runs", type=int, default=1000, metavar="N", help="with nothing planted (1000)")
    parser.add_argument("--faults", type=int, default=50, metavar="N", help="with each fault planted (50)")
    parser.add_argument("--limits", type=int, default=1000, metavar="N", help="trials of each SLO at its limit (1000)")
    parser.add_argument("--out", type=Path, default=Path(OUT), metavar="FILE", help=f"the page ({OUT})")


def run(arguments: argparse.Namespace) -> int:
    """Calibrate, and write the page."""
    from pytest_llmperf.calibration.emulated import calibrate_emulated
    from pytest_llmperf.plugin.collecting import collect

    tests = collect(arguments.suites, arguments.emulate)
    page = calibrate_emulated(
        tests,
        kind=arguments.emulate,
        suite_runs=arguments.suite_runs,
        faults=arguments.faults,
        limits=arguments.limits,
        out=arguments.out,
        root=Path.cwd(),
        command=_command(arguments),
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(page)
    return 0


def _command(arguments: argparse.Namespace) -> str:
    """The command line again, in full."""
    named = "" if arguments.suites == ["suites"] else f" {' '.join(arguments.suites)}"
    return (
        f"llmperf calibrate{named} --emulate {arguments.emulate} --suite-runs {arguments.suite_runs} "
        f"--faults {arguments.faults} --limits {arguments.limits} --out {arguments.out}"
    )
