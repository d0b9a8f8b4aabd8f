"""tests/faults/README.md lists every fault once, says what happens, and names tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "tests/faults/README.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| \d", line)]
NAMED = r"`(tests/[\w/]+\.py)::(\w+)`"
FAULTS = 85  # of the test plan; what is found later follows


@cache
def names_in(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


@pytest.mark.parametrize(("path", "name"), sorted(set(re.findall(NAMED, PAGE))))
def test_named_test_exists(path, name):
    assert name in names_in(path)


def test_every_fault_has_one_row():
    assert [row[0] for row in ROWS] == [str(number) for number in range(1, len(ROWS) + 1)]
    assert len(ROWS) >= FAULTS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_row_has_outcome_and_tests(row):
    assert len(row) == 4
    assert all(row)
    assert re.fullmatch(rf"{NAMED}(, {NAMED})*", row[3])
