"""List what is stored: test, sessions, latest date, primary metrics."""

from __future__ import annotations

import argparse

from pytest_llmperf.cli.output import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", help="hardware kind, e.g. h200 or emulated-h200 (default: all)")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.baseline.catalog import catalog
    from pytest_llmperf.config.root import project_root
    from pytest_llmperf.config.settings import read_settings
    from pytest_llmperf.report.stored_text import baseline_list

    root = project_root()
    say("\n".join(baseline_list(catalog(root / read_settings(root).baselines_dir, arguments.kind))))
    return 0
