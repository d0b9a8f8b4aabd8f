"""Show one baseline: its conditions and every metric, with the spread between its sessions."""

from __future__ import annotations

import argparse

from pytest_llmperf.cli.output import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("test", metavar="TEST", help="a test's id, its function, or a part of it")
    parser.add_argument("--kind", help="hardware kind (default: every kind that has it)")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.baseline.catalog import catalog, pick
    from pytest_llmperf.config.root import project_root
    from pytest_llmperf.config.settings import read_settings
    from pytest_llmperf.report.stored_text import baseline_text

    root = project_root()
    entries = catalog(root / read_settings(root).baselines_dir, arguments.kind)
    for entry in pick(entries, arguments.test):
        say("\n".join(baseline_text(entry)))
    return 0
