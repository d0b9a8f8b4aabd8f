"""Say what changed in the baselines: against a git revision, or between two folders.

Without arguments: what the working tree changes against HEAD, for whoever reviews it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli.output import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", nargs="?", default="HEAD", metavar="OLD", help="git revision or folder (default: HEAD)")
    parser.add_argument("new", nargs="?", metavar="NEW", help="git revision or folder (default: the working tree)")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.config.root import project_root
    from pytest_llmperf.config.settings import read_settings
    from pytest_llmperf.report.stored_text import changes
    from pytest_llmperf.session.baseline_states import state

    root = project_root()
    folder = read_settings(root).baselines_dir
    places = _typed(arguments.old), _typed(arguments.new) if arguments.new else folder
    old, new = (state(root, folder, place) for place in places)
    say("\n".join(changes(old, new)) or "no difference")
    return 0


def _typed(place: str) -> str:
    """A folder is typed from where the user is."""
    return str(Path(place).absolute()) if Path(place).is_dir() else place
