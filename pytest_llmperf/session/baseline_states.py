"""All baselines as they are in a folder, or as they were at a git revision."""

from __future__ import annotations

from pathlib import Path

from pytest_llmperf.baseline.catalog import catalog
from pytest_llmperf.baseline.text import decode
from pytest_llmperf.errors import UsageError
from pytest_llmperf.process.git import git
from pytest_llmperf.results.baseline import Baseline


def state(root: Path, folder: str, place: str) -> dict[str, Baseline]:
    """Path → baseline.

    Args:
        root: of the project.
        folder: of its baselines, relative to `root`.
        place: a folder of baselines, or a git revision.

    Raises:
        UsageError: it is neither.
        BaselineError: a file cannot be read or believed.
    """
    if (root / place).is_dir():
        return {entry.path: entry.baseline for entry in catalog(root / place)}
    prefix = f"{folder.rstrip('/')}/"
    names = _git(root, place, "ls-tree", "-r", "--name-only", place, "--", prefix).splitlines()
    files = [name for name in names if name.endswith(".json") and "/" in name.removeprefix(prefix)]
    return {
        name.removeprefix(prefix): decode(_git(root, place, "show", f"{place}:./{name}").encode(), f"{place}:{name}")
        for name in files
    }


def _git(root: Path, place: str, *arguments: str) -> str:
    try:
        output = git(root, *arguments)
    except UsageError as error:
        raise UsageError(f"{place!r} is neither a folder nor a git revision: {error}. "
                         "Try: git log --oneline -- baselines") from error
    if output is None:
        raise UsageError(f"{place!r} is neither a folder nor a git revision: {root} lies in no git "
                         "repository. Name a folder of stored baselines.")
    return output.decode("utf-8")
