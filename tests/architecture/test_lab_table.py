"""docs/labs.md names tests that exist, and a reason for every step without a test."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/labs.md").read_text(encoding="utf-8")
NAMED = r"`((?:suites|tests)/[\w/]+\.py)::(\w+)`"
VERDICTS = ("PASS", "FAIL", "INCONCLUSIVE", "REPORTED", "ERROR", "not run")


def rows(columns):
    """Cells of the page's rows with so many columns, without heads and rules."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith("|---")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if len(row) == columns and row[0] not in ("step", "week")]


STEPS, MISSING = rows(4), rows(3)


@cache
def names_in(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize(("path", "name"), sorted(set(re.findall(NAMED, PAGE))))
def test_named_lab_test_exists(path, name):
    assert name in names_in(path)


@pytest.mark.parametrize("row", STEPS, ids=lambda row: row[0])
def test_lab_step_has_test_and_verdict(row):
    assert all(row)
    assert re.search(NAMED, row[1]), row
    assert any(verdict in row[3] for verdict in VERDICTS), row


def test_every_suite_test_has_lab_step():
    paths = sorted(ROOT.glob("suites/test_*.py"))
    existing = {(f"suites/{path.name}", name) for path in paths for name in names_in(f"suites/{path.name}")}
    assert len(STEPS) > 50
    assert not existing - set(re.findall(NAMED, PAGE))


@pytest.mark.parametrize("row", MISSING, ids=lambda row: row[1])
def test_lab_step_without_test_has_reason(row):
    assert len(row[2].split()) >= 5
