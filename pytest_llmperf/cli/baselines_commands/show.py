"""Show one baseline: its conditions and every metric, with the spread between its sessions."""

from __future__ import annotations

import argparse

from pytest_llmperf.cli.baselines_commands import KIND, ONE_TEST, entries
from pytest_llmperf.cli.output import say
from pytest_llmperf.report.stored_text import baseline_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("test", metavar="TEST", help=ONE_TEST)
    parser.add_argument("--kind", help=KIND)


def run(arguments: argparse.Namespace) -> int:
    for entry in entries(arguments):
        say("\n".join(baseline_text(entry)))
    return 0
