"""What suites use of an engine, and what an upgrade touches of it, before any server starts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from pytest_llmperf.errors import UsageError
from pytest_llmperf.releases.changes import ABSENT, DEFAULT, GONE, NEW, VALUES, WORDS, Change

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_:]*")
LMCACHE = "with_lmcache"


@dataclass(frozen=True, slots=True)
class Uses:
    """Flags, metrics and other names of an engine in the code of one test and of the functions that the test calls.

    Args:
        test: "test_fp8.py::test_name"; of a part of this package a text for people.
        flags: keywords of calls and keys of dictionaries.
        words: identifiers in texts.
        names: names that the code refers to: engines among them.
    """

    test: str
    flags: frozenset[str]
    words: frozenset[str]
    names: frozenset[str]

    def is_on(self, engine: str) -> bool:
        """Whether it starts this engine, or for "lmcache" any engine with LMCache."""
        return (LMCACHE if engine == "lmcache" else engine) in self.names


@dataclass
class _Part:
    flags: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


def uses_of(paths: Sequence[Path], not_flags: frozenset[str]) -> list[Uses]:
    """Every test below these files and folders.

    Args:
        not_flags: functions whose keywords are no flags of an engine: workloads and arrivals.

    Raises:
        UsageError: a path is not there, or a file is no Python.
    """
    return [each for path in paths for file in _files(path) for each in _tests(file, not_flags)]


def uses_of_package(engine: str, folder: Path) -> Uses:
    """The flags that this package gives to an engine and the names that it reads, in the engine's folder."""
    parts = [part for file in sorted(folder.glob("*.py")) for part in _parts(_tree(file), frozenset()).values()]
    return _used_by(f"every test on {engine}", parts)


def _used_by(test: str, parts: Sequence[_Part]) -> Uses:
    return Uses(test, *(frozenset(chain.from_iterable(getattr(part, each) for part in parts))
                        for each in ("flags", "words", "names")))


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(path.rglob("test_*.py"))
    elif path.is_file():
        yield path
    else:
        raise UsageError(f"{path}: not there. Name the folder of the suites.")


def _tree(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as error:
        raise UsageError(f"{file} cannot be read as Python: {error}. Mend the file or name others.") from error


def _tests(file: Path, not_flags: frozenset[str]) -> Iterator[Uses]:
    parts = _parts(_tree(file), not_flags)
    for name in parts:
        if name.rpartition(".")[2].startswith("test_"):
            yield _used_by(f"{file.name}::{name}", [parts[each] for each in _reached(name, parts)])


def _reached(name: str, parts: Mapping[str, _Part]) -> set[str]:
    """The part and every part of the file that it refers to."""
    seen, waiting = set[str](), [name]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += [each for each in parts[current].names if each in parts]
    return seen


def _parts(tree: ast.Module, not_flags: frozenset[str]) -> dict[str, _Part]:
    """Functions, classes and constants of a file by name; other statements belong to "" ."""
    parts: dict[str, _Part] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = target.id if isinstance(target, ast.Name) else ""
        else:
            name = ""
        _collect(node, parts.setdefault(name, _Part()), not_flags)
    return parts


def _collect(node: ast.AST, part: _Part, not_flags: frozenset[str]) -> None:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            part.names.add(each.id)
        elif isinstance(each, ast.Attribute):
            part.names.add(each.attr)
        elif isinstance(each, ast.Call):
            called = ast.unparse(each.func).rpartition(".")[2]
            if called not in not_flags:
                part.flags |= {keyword.arg for keyword in each.keywords if keyword.arg is not None}
        elif isinstance(each, ast.Dict):
            keys = (key.value for key in each.keys if isinstance(key, ast.Constant))
            part.flags |= {key for key in keys if isinstance(key, str)}
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            part.words |= {each.value, *WORD.findall(each.value)}


SHOWN_TESTS = 3
PYTORCH = "torch"
ON_A_PAGE = re.compile(r"_(total|bucket|sum|count)$")


@dataclass(frozen=True, slots=True)
class Touch:
    """One difference that tests meet.

    Args:
        tests: names of these tests.
        text: what happens, and what to write.
        is_all: whether these are all tests on the engine.
        breaks: whether the tests cannot run as they are.
    """

    change: Change
    tests: tuple[str, ...]
    text: str
    is_all: bool
    breaks: bool

    def __str__(self) -> str:
        if self.is_all:
            return f"{self.text} [all {len(self.tests)} tests]"
        more = f" and {len(self.tests) - SHOWN_TESTS} more" if len(self.tests) > SHOWN_TESTS else ""
        return f"{self.text} [{', '.join(self.tests[:SHOWN_TESTS])}{more}]"


def rehearse(found: Sequence[Change], tests: Sequence[Uses], package: Uses) -> tuple[list[Touch], list[Change]]:
    """Sort the differences between two versions: differences that touch tests, and the rest.

    Args:
        found: all differences between the two versions.
        tests: tests on the engine.
        package: what this package itself writes for every test on the engine.
    """
    touches = [touch for change in found for touch in _touches(change, tests, package)]
    met = {touch.change for touch in touches}
    return touches, [change for change in found if change not in met]


def _touches(change: Change, tests: Sequence[Uses], package: Uses) -> Iterator[Touch]:
    everyone = tuple(each.test for each in tests)
    users = tuple(each.test for each in tests if _is_named(change, each)) or (
        everyone if _is_named(change, package) else ())
    if change.section == "sources":
        text = (f"The source that our table of defaults cites has changed: {change.name}, which decides "
                f"{change.instead}. Compare the resolved values of a start.")
        met, breaks = everyone, False
    elif change.section == "packages" and change.name == PYTORCH:
        text = f"PyTorch {change.before} → {change.after}. Install the engine in a new environment."
        met, breaks = everyone, False
    elif change.kind == DEFAULT and change.section == "flags":
        text = f"The default of {change.python_name} was {change.before} and is {change.after}.{_keep(change)}"
        met, breaks = tuple(each.test for each in tests if not _is_named(change, each)), False
    elif change.kind == GONE:
        instead = f"Write {change.instead}." if change.instead else "No replacement is known: leave it out."
        text, met, breaks = f"The {WORDS[change.section]} {change.name} is gone. {instead}", users, True
    else:
        text = (f"The {WORDS[change.section]} {change.name} has changed: {change.before} before, {change.after} now. "
                "Look at the values in these tests.")
        met, breaks = () if change.kind == NEW or change.before == ABSENT else users, False
    if met:
        yield Touch(change, met, text, len(met) == len(everyone), breaks)


def _keep(change: Change) -> str:
    """How a spec keeps the older default; "" for an absent default and a key of a configuration."""
    if change.before in (ABSENT, "{…}") or "." in change.name:
        return ""
    return f" Write {change.python_name}={change.before} to keep the older one."


def _is_named(change: Change, uses: Uses) -> bool:
    if change.section == "flags":
        names = set(change.python_name.split("."))
        by_option = change.name in uses.words and change.name.startswith("--")
        return (names <= uses.flags or by_option) and (
            change.kind != VALUES or bool(set(change.before.split(", ")) & uses.words))
    if change.section == "metrics":
        wanted = change.name.replace(".", "_")
        return any(ON_A_PAGE.sub("", word) in (wanted, ON_A_PAGE.sub("", wanted)) for word in uses.words)
    if change.section == "routes":
        return change.name.partition(" ")[2] in uses.words
    return change.section == "variables" and change.name in uses.words | uses.flags


def listed(others: Sequence[Change]) -> Iterator[str]:
    """Lines of a list by section and kind, with a title before each group."""
    for title, lines in grouped(others):
        yield f"  {len(lines)} {title}"
        yield from (f"      {line}" for line in lines)


def grouped(others: Sequence[Change]) -> Iterator[tuple[str, list[str]]]:
    """Title → names with their values, in the order of the sections."""
    for section, word in WORDS.items():
        for kind, title in ((GONE, f"{word}s that are gone"), (NEW, f"new {word}s"),
                            (DEFAULT, f"{word}s with another default"), (VALUES, f"{word}s that changed")):
            lines = [_line(change) for change in others if change.section == section and change.kind == kind]
            if lines:
                yield title, lines


def _line(change: Change) -> str:
    if change.kind == GONE:
        return f"{change.name} → {change.instead}" if change.instead else change.name
    if change.kind == NEW:
        return f"{change.name} ({change.after})" if change.after != ABSENT else change.name
    return f"{change.name}: {change.before} → {change.after}"
