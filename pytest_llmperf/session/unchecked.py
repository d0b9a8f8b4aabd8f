"""A test that measured and ended without a check: a forgotten check, or a check that was never reached?

The source code of the test and of its fixtures decides. A test whose source contains a check but that reached no check
is an ERROR. A test without a check in its source only reports figures, so its verdict is REPORTED.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType

from pytest_llmperf.errors import NotJudged
from pytest_llmperf.session.sources import is_of_project

#: Methods of `perf` that judge or store a verdict. Those that judge only with a limit: the argument of the limit.
CHECKS = frozenset({"check", "claim", "claim_max_rate", "compare", "compare_with_baseline", "record", "refuses"})
LIMITED = {"accuracy": "at_least"}
COMPARISON = "compare_with_baseline"
REMEDY = "Let every path through the test reach a check, or leave the test before it measures."


def not_judged(left: str) -> NotJudged:
    """The error of a test that measured and left before any check.

    Args:
        left: how it left, e.g. "skipped: no time"; "" where it returned.
    """
    how = f"{left} (after measuring, before any check)" if left else "returned after measuring, before any check"
    return NotJudged(f"{how}. {REMEDY}")


def in_project(function: Callable[..., object]) -> bool:
    """Whether a function is written in a project, not in an installed package."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and is_of_project(Path(code.co_filename))


def contains_check(functions: Iterable[Callable[..., object]]) -> bool:
    """Whether one of these functions, or a function of the project that they name, contains a check.

    The source counts, because Python compiles nothing that stands behind a `return`.

    Args:
        functions: of a test: its own and those of its fixtures.
    """
    return _reaches(functions, lambda node: (isinstance(node, ast.Attribute) and node.attr in CHECKS)
                    or _has_limit(node))


def contains_comparison(test: object) -> bool:
    """Whether a test, or a function of the project that it names, compares with a stored baseline.

    A claim plans its servers before the test reaches the comparison, so only the code can say. An object that a fixture
    or another function gives is not followed.
    """
    return _reaches([test] if callable(test) else [],
                    lambda node: isinstance(node, ast.Attribute) and node.attr == COMPARISON)


def _reaches(functions: Iterable[Callable[..., object]], wanted: Callable[[ast.AST], bool]) -> bool:
    """Whether the syntax of these functions, or of functions that they name, has what is wanted."""
    left, seen = list(functions), set[Callable[..., object]]()
    while left:
        function = left.pop()
        function = inspect.unwrap(getattr(function, "__func__", function))
        if not in_project(function) or function in seen:
            continue
        seen.add(function)
        nodes = list(syntax_of(function))
        if any(map(wanted, nodes)):
            return True
        left += _named(function, {name for node in nodes if (name := getattr(node, "attr", getattr(node, "id", "")))})
    return False


def syntax_of(function: Callable[..., object]) -> Iterator[ast.AST]:
    """The syntax of a function; nothing if its source cannot be read."""
    code = inspect.unwrap(function).__code__
    for node in _functions_in(Path(code.co_filename)):
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        if first == code.co_firstlineno and getattr(node, "name", "<lambda>") == code.co_name:
            yield from ast.walk(node)


@cache
def _functions_in(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda]:
    """The functions of a source file; none if the file cannot be read."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]


def _has_limit(node: ast.AST) -> bool:
    """Whether this is a call that judges because it names a limit, as perf.accuracy(…, at_least=0.5)."""
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and any(keyword.arg == LIMITED.get(node.func.attr, "") for keyword in node.keywords))


def _named(function: Callable[..., object], names: set[str]) -> Iterator[Callable[..., object]]:
    """Functions with these names: global ones, those of modules, classes and objects with a global name, of the own
    class, and those of the closure."""
    if not isinstance(function, FunctionType):
        return
    candidates = [function.__globals__[name] for name in names & function.__globals__.keys()]
    owner = function.__globals__.get(function.__qualname__.rpartition(".")[0])
    candidates += [inspect.getattr_static(place, name, None) for place in (*candidates, owner) for name in names]
    candidates += inspect.getclosurevars(function).nonlocals.values()
    found = (getattr(each, "__func__", each) for each in candidates)
    yield from (each for each in found if isinstance(each, FunctionType))
