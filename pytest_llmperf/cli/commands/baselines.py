"""Look at stored baselines and take measurements into them."""

from __future__ import annotations

import argparse

from pytest_llmperf.cli import baselines_commands
from pytest_llmperf.cli.parser import add_commands


def add_arguments(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_subparsers(dest="baselines_command", metavar="COMMAND", required=True)
    add_commands(chosen, baselines_commands, runs_as="run_on_baselines")


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.run_on_baselines(arguments))
