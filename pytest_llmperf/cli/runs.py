"""Finds the run that a command names. A command without a name reads the newest run of this project."""

from __future__ import annotations

import shlex
from pathlib import Path

from pytest_llmperf.cli.output import remark
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.errors import UsageError
from pytest_llmperf.results.reader import find_run, stored_runs

#: What each command says of its argument RUN.
RUN_HELP = "path of a run folder, its id, a part of the id, or newest"


def _runs_dir() -> Path:
    """The folder of this project's run folders.

    Raises:
        ConfigError: the project's settings cannot be read.
    """
    root = project_root()
    return root / read_settings(root).runs_dir


def project_runs() -> list[Path]:
    """The stored runs of this project, oldest first.

    Raises:
        ConfigError: the project's settings cannot be read.
    """
    return stored_runs(_runs_dir())


def named_run(named: str) -> Path:
    """The run folder or JUnit file that a user names (`RUN_HELP`).

    Raises:
        UsageError: there is no such run, or several.
    """
    return Path(named) if Path(named).exists() else find_run(named, _runs_dir(), Path())


def newest_run() -> Path:
    """The newest run of this project; its folder is named on standard error.

    Raises:
        UsageError: no run is stored.
    """
    runs = project_runs()
    if not runs:
        raise UsageError("No run is stored in this project. Run pytest first, or name a run folder.")
    remark(f"The newest run: {_shown(runs[-1])}")
    return runs[-1]


def run_before(run: Path) -> Path:
    """The run before a stored run; its folder is named on standard error.

    Raises:
        UsageError: no older run is stored.
    """
    older = [stored for stored in project_runs() if stored.name < run.resolve().name]
    if not older:
        raise UsageError(f"No run before {run} is stored in this project. Name both runs: llmperf diff OLD NEW.")
    remark(f"The run before: {_shown(older[-1])}")
    return older[-1]


def pytest_options(text: str) -> list[str]:
    """The words of `--pytest OPTIONS`.

    Raises:
        UsageError: the text cannot be split.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--pytest {text!r}: {error}. Close the quotes.") from error


def _shown(folder: Path) -> Path:
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder
