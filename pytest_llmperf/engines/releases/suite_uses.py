"""Which flags, variables and metrics the tests of a suite name, read from the source of the suite."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_llmperf.errors import UsageError

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
    """What this package itself gives to an engine and reads of it: the folder of the engine, as one."""
    parts = [part for file in sorted(folder.glob("*.py")) for part in _parts(_tree(file), frozenset()).values()]
    return Uses(f"every test on {engine}", *(frozenset[str]().union(*map(frozenset, each)) for each in (
        [part.flags for part in parts], [part.words for part in parts], [part.names for part in parts])))


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
            whole = [parts[each] for each in _reached(name, parts)]
            yield Uses(f"{file.name}::{name}", *(frozenset[str]().union(*each) for each in (
                [part.flags for part in whole], [part.words for part in whole], [part.names for part in whole])))


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
