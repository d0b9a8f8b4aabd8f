"""A test that measured and ended without a check: a forgotten check, or a check that was never reached?

The source code of the test and of its fixtures decides. A test whose source contains a check but that reached no check
is an ERROR. A test without a check in its source only reports figures, so its verdict is REPORTED.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType

from pytest_llmperf.errors import NotJudged

#: Methods of `perf` that judge or store a verdict. Those that judge only with a limit: the argument of the limit.
CHECKS = frozenset({"check", "claim", "claim_max_rate", "compare", "compare_with_baseline", "record", "refuses"})
LIMITED = {"accuracy": "at_least"}
REMEDY = "Let every path through the test reach a check, or leave the test before it measures."


def not_judged(left: str) -> NotJudged:
    """The error of a test that measured and left before any check.

    Args:
        left: how it left, e.g. "skipped: no time"; "" where it returned.
    """
    how = f"{left} (after measuring, before any check)" if left else "returned after measuring, before any check"
    return NotJudged(f"{how}. {REMEDY}")


def in_project(function: Callable[..., object], root: Path) -> bool:
    """Whether a function is written in this project, not in an installed package."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return False
    path = Path(code.co_filename)
    return path.is_relative_to(root) and "site-packages" not in path.parts


def contains_check(functions: Iterable[Callable[..., object]], root: Path) -> bool:
    """Whether one of these functions, or a function of the project that they name, contains a check.

    The source counts, because Python compiles nothing that stands behind a `return`.

    Args:
        functions: of a test: its own and those of its fixtures.
        root: of the project.
    """
    left, seen = list(functions), set[Callable[..., object]]()
    while left:
        function = inspect.unwrap(left.pop())
        function = getattr(function, "__func__", function)
        if function in seen or not in_project(function, root):
            continue
        seen.add(function)
        nodes = list(syntax_of(function))
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        if CHECKS & attributes or any(map(_has_limit, nodes)):
            return True
        left += _named(function, attributes | {node.id for node in nodes if isinstance(node, ast.Name)})
    return False


def syntax_of(function: Callable[..., object]) -> Iterator[ast.AST]:
    """The syntax of a function; nothing where its source cannot be read."""
    code = inspect.unwrap(function).__code__
    try:
        tree = ast.parse(Path(code.co_filename).read_bytes())
    except (OSError, ValueError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
            if first == code.co_firstlineno and getattr(node, "name", "<lambda>") == code.co_name:
                yield from ast.walk(node)


def _has_limit(node: ast.AST) -> bool:
    """Whether this is a call that judges because it names a limit, as perf.accuracy(…, at_least=0.5)."""
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and any(keyword.arg == LIMITED.get(node.func.attr, "") for keyword in node.keywords))


def _named(function: Callable[..., object], names: set[str]) -> Iterator[Callable[..., object]]:
    """Functions with these names in the module, the imported modules, the closure or the class of a function."""
    if not isinstance(function, FunctionType):
        return
    candidates = [function.__globals__[name] for name in names & function.__globals__.keys()]
    owner = function.__globals__.get(function.__qualname__.rpartition(".")[0])
    places = [candidate for candidate in (*candidates, owner) if isinstance(candidate, ModuleType | type)]
    candidates += [vars(place)[name] for place in places for name in names & vars(place).keys()]
    candidates += inspect.getclosurevars(function).nonlocals.values()
    yield from (candidate for candidate in candidates if isinstance(candidate, FunctionType))
