"""Finding stored baselines by the words that people use for them, and reading them from git."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.baseline.text import decode
from pytest_llmperf.errors import UsageError, did_you_mean
from pytest_llmperf.process.git import git
from pytest_llmperf.results.baseline import Baseline, Entry


def state(root: Path, folder: str, place: str) -> dict[str, Baseline]:
    """Path → baseline.

    Args:
        root: of the project.
        folder: of its baselines, relative to `root`.
        place: a folder of baselines, or a git revision.

    Raises:
        UsageError: `place` is neither a folder nor a git revision.
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


CREATE = "Create baselines with: pytest suites --update-baselines-new"


def catalog(root: Path, kind: str | None = None) -> list[Entry]:
    """Every stored baseline, or those of one kind, by path.

    Raises:
        UsageError: the folder does not exist, or has no baselines of the hardware kind.
        BaselineError: a file is unreadable or invalid.
    """
    if not root.is_dir():
        raise UsageError(f"{root}: there is no such folder of baselines. {CREATE}")
    kinds = sorted(path.name for path in root.iterdir() if path.is_dir() and path.name[:1] not in "._")
    if kind is not None and kind not in kinds:
        raise UsageError(f"{root} has no baselines of {kind!r}, only of {', '.join(kinds) or 'no kind'}. {CREATE}")
    store, chosen = Store(root), [kind] if kind else kinds
    return [Entry(kind, path, baseline) for kind in chosen for path, baseline in store.read_all(kind).items()]


def pick(entries: Sequence[Entry], name: str) -> list[Entry]:
    """The baselines of the single test that a name matches, on any hardware kind. The name is a test id, a function, a
    baseline file, or a part of a test id or file.

    Raises:
        UsageError: the name matches no test or several tests.
    """
    whole = [entry for entry in entries if name in (entry.baseline.test, entry.path, _function(entry))]
    matches = whole or [entry for entry in entries if name in entry.baseline.test or name in entry.path]
    tests = sorted({match.baseline.test for match in matches})
    if len(tests) == 1:
        return matches
    if tests:
        raise UsageError(f"{name!r} may be each of: {', '.join(tests)}. Write more of it.")
    hint = did_you_mean(name, sorted({_function(entry) for entry in entries}), "Did you mean {}?", most=3)
    raise UsageError(f"There is no baseline of {name!r}. {hint or 'See them with: llmperf baselines list'}")


def _function(entry: Entry) -> str:
    return entry.baseline.test.partition("::")[2]
