"""Compare two runs, test by test: conditions that changed, metrics before and after, and what is proven.

RUN is a run folder or its JUnit file. The exit code does not depend on the differences. To gate a release, use
`llmperf release-report`, which states the rule for a worse metric.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli.output import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, metavar="OLD", help="run folder, or JUnit file")
    parser.add_argument("after", type=Path, metavar="NEW", help="run folder, or JUnit file")
    parser.add_argument("--all", action="store_true", help="every metric, not the primary ones alone")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.report.junit import read_release
    from pytest_llmperf.report.release import compare_runs
    from pytest_llmperf.report.terminal_text import comparison_text

    compared = compare_runs(read_release(arguments.before), read_release(arguments.after), others=arguments.all)
    say("\n\n".join(comparison_text(compared_test) for compared_test in compared))
    return 0
