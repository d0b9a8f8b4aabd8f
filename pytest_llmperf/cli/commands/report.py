"""Make the HTML report of a run again, from its folder alone.

One self-contained file: verdicts and reasons, distributions, timelines, baselines, conditions, logs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.runs import RUN_HELP, in_store, named_run, newest_run
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.report.html import write_report

ARGUMENTS = {
    "folders": {"nargs": "*", "metavar": "RUN", "help": f"{RUN_HELP} (the default); several make one report"},
    "--out": {"type": Path, "metavar": "DIR", "help": "where report.html goes (default: the run folder; "
              "for a run in a store the current folder)"},
}


def run(arguments: argparse.Namespace) -> int:
    named = [named_run(run) for run in arguments.folders] or [newest_run()]
    folders = list({folder.resolve(): folder for folder in named}.values())  # each once
    root = project_root(folders[0])
    store = Store(root / read_settings(root).baselines_dir)
    folder = Path.cwd() if any(map(in_store, arguments.folders[:1])) else folders[0]
    say(write_report(folders, store.read, arguments.out or folder))
    return 0
