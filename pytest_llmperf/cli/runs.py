"""Finds the run that a command names, on disk or in a store. Without a name it is the newest run of this project."""

from __future__ import annotations

import atexit
import shlex
from pathlib import Path

from pytest_llmperf.cli.output import remark
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.errors import UsageError
from pytest_llmperf.process.places import scratch_folder
from pytest_llmperf.process.scratch import Scratch
from pytest_llmperf.results.reader import find_run, stored_runs
from pytest_llmperf.session.run_store import SESSION, RunStore

#: What each command says of its argument RUN.
RUN_HELP = "path of a run folder, its id, a part of the id, or newest; also in a store: s3://BUCKET/FOLDER/newest"


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
    """The run folder or JUnit file that a user names (`RUN_HELP`). A run folder in a store is copied for this command.

    Raises:
        UsageError: there is no such run, or several.
        ConfigError: the store cannot be read.
    """
    if in_store(named):
        store, _, run = named.rstrip("/").rpartition("/")
        return RunStore(store).fetch(run, _copies())
    return Path(named) if Path(named).exists() else find_run(named, _runs_dir(), Path())


def in_store(named: str) -> bool:
    """Whether a user names a URL instead of a path or an id."""
    return "://" in named


def source_of_history(named: str) -> Path:
    """A path as a user names it. The results of a store, or of one run there, are copied for this command.

    Raises:
        UsageError: the store has no such run.
        ConfigError: the store cannot be read.
    """
    if not in_store(named):
        return Path(named)
    if SESSION.fullmatch(named.rstrip("/").rpartition("/")[2]):
        return named_run(named)
    RunStore(named).fetch_all(copies := _copies())
    return copies


def _copies() -> Path:
    """A new folder that lasts as long as this command."""
    scratch = Scratch(scratch_folder(), "store-")
    atexit.register(scratch.remove)
    return scratch.path


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
