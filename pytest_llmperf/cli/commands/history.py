"""Show how metrics moved from session to session: change points, and whether the build or the host changed there.

    llmperf history
    llmperf history --html history
    llmperf history nightly/ baselines/ llmperf-v1.2.xml --test test_serving --metric itl_p50

A series is one metric of one test on one host. Without SOURCE it reads the run folders and the baselines of this
project, with the versions of the baselines in git. It prints Markdown.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.runs import source_of_history
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.errors import UsageError
from pytest_llmperf.judging.history import judged
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.report.history import markdown
from pytest_llmperf.report.html.history_page import write_history_page
from pytest_llmperf.session.history import read_history

ARGUMENTS = {
    "sources": {"nargs": "*", "metavar": "SOURCE",
                "help": "run folder, folder of run folders, folder of baselines, JUnit file, or URL of a store"},
    "--test": {"default": "", "metavar": "PART", "help": "only tests with this part in their id"},
    "--metric": {"action": "append", "default": [], "metavar": "NAME",
                 "help": "e.g. itl_p99; repeatable (default: the primary metrics of each test)"},
    "--kind": {"metavar": "KIND", "help": "only this hardware kind, e.g. h200 or emulated-h200"},
    "--html": {"type": Path, "metavar": "FOLDER", "help": "write history.html there instead of printing"},
}


def run(arguments: argparse.Namespace) -> int:
    root = project_root()
    settings = read_settings(root)
    metrics = [find(name).name for name in arguments.metric]
    history = read_history(root, settings.baselines_dir, settings.runs_dir,
                           list(map(source_of_history, arguments.sources)), metrics)
    chosen = {name: sessions for name, sessions in history.sessions.items()
              if arguments.test in name.test and arguments.kind in (None, name.kind)}
    series = judged(chosen)
    if not series:
        there = ", ".join(sorted({f"{name.test} on {name.kind}" for name in history.sessions})[:5])
        errors = f"; tests left out because they ended in ERROR: {history.errors}" if history.errors else ""
        raise UsageError(f"no session with such a test and metric is stored{f'; there are {there}' if there else ''}"
                         f"{errors}. Name the sources: llmperf history RUN_FOLDERS baselines")
    if arguments.html is None:
        say(markdown(series, history.notes), end="")
    else:
        say(write_history_page(series, history.notes, arguments.html))
    return 0
