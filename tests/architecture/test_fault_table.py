"""docs/faults.md names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/faults.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_the_test_is_there(path, name):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_row_names_one():
    rows = [line for line in (ROOT / "docs/faults.md").read_text(encoding="utf-8").splitlines() if line[2:3].isdigit()]
    assert len(rows) >= 24
    assert all("::" in row for row in rows)
