"""Compare two runs, test by test: conditions that changed, metrics before and after, and what is proven.

The exit code does not depend on the differences. To gate a release, use
`llmperf release-report`, which states the rule for a worse metric.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.runs import RUN_HELP, named_run, newest_run, run_before
from pytest_llmperf.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN",
                        help=f"OLD NEW, each a JUnit file, or {RUN_HELP}; one run is compared with the run before it, "
                        "and by default the two newest runs")
    parser.add_argument("--all", action="store_true", help="every metric, not the primary ones alone")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.report.junit import read_release
    from pytest_llmperf.report.release import compare_runs
    from pytest_llmperf.report.terminal_text import comparison_text

    before, after = _compared_runs([named_run(run) for run in arguments.runs])
    compared = compare_runs(read_release(before), read_release(after), others=arguments.all)
    say("\n\n".join(comparison_text(compared_test) for compared_test in compared))
    return 0


def _compared_runs(named: list[Path]) -> tuple[Path, Path]:
    """The older and the newer run.

    Raises:
        UsageError: three runs or more are named, or no older run is stored.
    """
    if len(named) > 2:
        raise UsageError(f"llmperf diff compares two runs, and {len(named)} are named: llmperf diff OLD NEW.")
    if len(named) == 2:
        return named[0], named[1]
    after = named[0] if named else newest_run()
    return run_before(after), after
