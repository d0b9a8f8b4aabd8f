"""`llmperf baselines COMMAND`: one module each, as in `cli.commands`."""

from __future__ import annotations

import argparse

from pytest_llmperf.baseline.catalog import catalog, pick
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.results.baseline import Entry

ONE_TEST = "a test's id, its function, or a part of it"
KIND = "hardware kind, e.g. h200 or emulated-h200 (default: every kind that has it)"


def entries(arguments: argparse.Namespace) -> list[Entry]:
    """The stored baselines of a kind or of all kinds. A command with a TEST gets the baselines of this test.

    Raises:
        UsageError: no baseline or several baselines have such a name.
        LlmperfError: the settings or a baseline cannot be read.
    """
    root = project_root()
    stored = catalog(root / read_settings(root).baselines_dir, arguments.kind)
    return pick(stored, arguments.test) if "test" in arguments else stored
