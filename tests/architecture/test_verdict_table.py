"""docs/planted_faults.md names an existing test for every fault, and docs/verdicts.md defines every verdict."""

import ast
import re
from pathlib import Path

import pytest

from pytest_llmperf.emulator.faults import FAULTS
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.ended_test import OUTCOMES

ROOT = Path(__file__).parents[2]
OTHERWISE = {"skip", "usage error", "refused", "exit code 12"}
HELD = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows():
    text = (ROOT / "docs" / "planted_faults.md").read_text(encoding="utf-8")
    table = text.split("| planted | class |", 1)[1].splitlines()[2:]
    for line in table:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


ROWS = list(rows())


def functions(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_is_held_by_a_test_that_exists(row):
    planted, verdict, _, held_by = row
    assert verdict in {*Verdict.__members__, *OTHERWISE}
    path, function = HELD.fullmatch(held_by).groups()
    assert (ROOT / path).is_file()
    assert function in functions(path), planted


def test_verdicts_page_defines_every_verdict():
    text = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    table = text.split("| class | means |", 1)[1].split("\n\n", 1)[0]
    documented = set(re.findall(r"[A-Z_]{4,}", " ".join(line.split("|")[1] for line in table.splitlines()[2:])))
    assert documented == set(OUTCOMES)


def test_planted_faults_page_names_each_fault_once():
    assert len({row[0] for row in ROWS}) == len(ROWS)


def emulated():
    """Rows of the emulator's faults: fault → class."""
    parsed = (re.fullmatch(r"emulated `(.+)`", row[0]) for row in ROWS)
    return {match[1]: row[1] for match, row in zip(parsed, ROWS, strict=True) if match}


def test_every_fault_of_the_emulator_has_a_row():
    assert {fault.partition("=")[0] for fault in emulated()} == {fault.partition("=")[0] for fault in FAULTS}


def test_verdicts_of_planted_faults_page_match_shipped_suite_test():
    source = ast.parse((ROOT / "tests/emulated/test_shipped_suites.py").read_text(encoding="utf-8"))
    (assigned,) = [node for node in source.body if isinstance(node, ast.Assign) and node.targets[0].id == "FAULTS"]
    others = {row[0].removeprefix("emulated `").rstrip("`") for row in ROWS if "test_shipped_suites" not in row[3]}
    shown = {fault: verdict for fault, verdict in emulated().items() if fault not in others}
    assert {fault: verdict for fault, *_, verdict in ast.literal_eval(assigned.value)} == shown
