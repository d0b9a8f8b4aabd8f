"""Examples in docstrings of the installed package give what they show."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import pytest_llmperf

PACKAGE = Path(pytest_llmperf.__file__).parent
FILES = [path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text("utf-8")]


@pytest.mark.parametrize("name", sorted(".".join(path.with_suffix("").parts) for path in FILES))
def test_examples_of_module_hold(name):
    outcome = doctest.testmod(import_module(name.removesuffix(".__init__")))
    assert outcome.attempted
    assert not outcome.failed
