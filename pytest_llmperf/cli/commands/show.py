"""Show a run: every test with its verdict and reason; with TEST, its checks, conditions and metrics."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli.output import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="run folder, .llmperf/runs/…")
    parser.add_argument("test", nargs="?", metavar="TEST", help="a part of a test's id: everything about such tests")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.report.terminal_text import overview, text_of_test
    from pytest_llmperf.results.reader import choose, read_run

    tests = read_run(arguments.folder)
    if arguments.test is None:
        say(overview(tests))
    else:
        say("\n\n".join(text_of_test(test) for test in choose(tests, arguments.test, arguments.folder)))
    return 0
