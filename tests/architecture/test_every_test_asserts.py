"""A test without an assertion passes whatever the code does."""

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
#: Calls that fail a test by themselves.
ASSERTING = {"assert", "raises", "warns", "fail", "assert_outcomes", "fnmatch_lines", "no_fnmatch_line", "until"}


@cache
def functions(path):
    return [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]


@cache
def calls(function):
    """Names of what the function calls; "assert" where a statement of the function asserts."""
    nodes = list(ast.walk(function))
    called = {node.func for node in nodes if isinstance(node, ast.Call)}
    return {getattr(each, "attr", getattr(each, "id", "")) for each in called} | {
        "assert" for node in nodes if isinstance(node, ast.Assert)}


def asserting(helpers):
    """The names above, and the names of helpers that call a function of these names."""
    names, before = set(ASSERTING), set()
    while names != before:
        before = set(names)
        names |= {helper.name for helper in helpers if not before.isdisjoint(calls(helper))}
    return names


def test_every_test_has_assertion():
    files = list(TESTS.rglob("*.py"))
    shared = [each for path in files if not path.name.startswith("test_") for each in functions(path)]
    silent = [f"{path.relative_to(TESTS)}::{each.name}" for path in files if path.name.startswith("test_")
              for names in [asserting([*shared, *(f for f in functions(path) if not f.name.startswith("test_"))])]
              for each in functions(path) if each.name.startswith("test_") and names.isdisjoint(calls(each))]
    assert silent == []
