"""Suites are what users copy: they import public names, are short, and seldom ask whether the engine is emulated."""

import ast
from pathlib import Path

import pytest

import pytest_llmperf

FILES = sorted((Path(__file__).parents[2] / "suites").rglob("*.py"))
MOST_LINES = 155
#: Tests whose emulated run lacks one part, and why.
ASK_FOR_EMULATOR = {
    ("test_batch_limits.py", "test_larger_blocks_leave_more_of_the_cache_empty"): "only emulated blocks have 8 tokens",
    ("test_cuda_graphs.py", "test_graphs_decode_faster_than_eager"): "an emulated server has no start-up time",
    ("test_prefix_caching.py", "test_saved_time_grows_with_the_prefix"): "two runs give no interval on real hardware",
    ("test_roofline.py", "test_offline_prompts_use_the_arithmetic"): "an emulated GPU has no sensor",
}


def uses(tree, attribute):
    """Names of the functions that read an attribute of this name."""
    return {function.name for function in ast.walk(tree) if isinstance(function, ast.FunctionDef)
            for node in ast.walk(function) if isinstance(node, ast.Attribute) and node.attr == attribute}


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_suite_is_short_and_imports_public_names_only(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    private = [(module, name) for module, name in imports(tree)
               if module.partition(".")[0] in ("importlib", "pytest_llmperf", "scripts")
               and not (module == "pytest_llmperf" and name in pytest_llmperf.__all__)]
    assert private == []
    assert len(text.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_suite_claims_same_of_every_kind_of_hardware(path):
    """A test whose claims differ by kind is two tests: no condition names a kind."""
    tests = [node.test for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, ast.If | ast.IfExp)]
    assert not [test for test in tests for node in ast.walk(test)
                if isinstance(node, ast.Attribute) and node.attr == "kind"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_suite_asks_for_emulator_only_where_reason_is_listed(path):
    asking = uses(ast.parse(path.read_text(encoding="utf-8")), "emulated")
    assert asking == {name for file, name in ASK_FOR_EMULATOR if file == path.name}
