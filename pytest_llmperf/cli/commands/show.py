"""Show a run: every test with its verdict and reason; with TEST, its checks, conditions and metrics."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.runs import RUN_HELP, named_run, newest_run, project_runs
from pytest_llmperf.errors import UsageError
from pytest_llmperf.report.html.session_facts import canary_texts
from pytest_llmperf.report.text import overview, text_of_test
from pytest_llmperf.results.reader import choose, read_run, read_session

ARGUMENTS = {
    "folder": {"nargs": "?", "metavar": "RUN", "help": f"{RUN_HELP} (the default)"},
    "test": {"nargs": "?", "metavar": "TEST", "help": "a part of a test's id: everything about such tests"},
}


def run(arguments: argparse.Namespace) -> int:
    folder, part = _folder_and_test(arguments.folder, arguments.test)
    tests = read_run(folder)
    if part is None:
        say("\n".join([overview(tests), *(f"canary: {text}" for text in canary_texts(read_session(folder)))]))
    else:
        say("\n\n".join(text_of_test(test) for test in choose(tests, part, folder)))
    return 0


def _folder_and_test(folder: str | None, test: str | None) -> tuple[Path, str | None]:
    """One word that names no run names a test of the newest run."""
    if folder is None:
        return newest_run(), None
    try:
        return named_run(folder), test
    except UsageError:
        if test is not None or "/" in folder or any(folder in run.name for run in project_runs()) or not project_runs():
            raise
        return newest_run(), folder
