"""Show how a test's metrics moved from session to session, against the anchor."""

from __future__ import annotations

import argparse

from pytest_llmperf.cli.baselines_commands import KIND, ONE_TEST, entries
from pytest_llmperf.cli.output import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("test", metavar="TEST", help=ONE_TEST)
    parser.add_argument("--kind", help=KIND)
    parser.add_argument("--metric", action="append", default=[], help="e.g. itl_p99; repeatable (default: the primary)")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.report.stored_text import history

    say("\n".join(line for entry in entries(arguments) for line in history(entry, arguments.metric)))
    return 0
