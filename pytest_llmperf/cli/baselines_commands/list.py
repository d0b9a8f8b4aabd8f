"""List what is stored: test, sessions, latest date, primary metrics."""

from __future__ import annotations

import argparse

from pytest_llmperf.cli.baselines_commands import KIND, entries
from pytest_llmperf.cli.output import say
from pytest_llmperf.report.stored_text import baseline_list


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", help=KIND)


def run(arguments: argparse.Namespace) -> int:
    say("\n".join(baseline_list(entries(arguments))))
    return 0
