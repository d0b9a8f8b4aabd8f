"""What the code of a test depends on: a change there changes the inputs, and a change elsewhere does not."""

import sys
from pathlib import Path

import pytest

from pytest_llmperf.session.sources import Sources, is_of_project, stable

TEST = """
import os
from pathlib import Path
from helpers import LIMIT
from package import inner

LOAD = {"rate": 8}

def test_one(perf):
    import lazy
    limits = Path(__file__).parent / "data" / "limits.json"
    perf.check(run(LOAD), LIMIT, os.environ.get("RATE_FACTOR"))

def run(load): return load

def test_two(perf): perf.check(1, "x <= 1")

class TestOther:
    def test_three(self): pass
"""
FILES = {
    "suites/test_it.py": TEST,
    "suites/helpers.py": "from deep import LIMIT\n",
    "suites/deep.py": "LIMIT = 'ttft_p99 <= 1s'\n",
    "suites/lazy.py": "import importlib\ndynamic = importlib.import_module('by_name')\n",
    "suites/by_name.py": "A = 1\n",
    "suites/package/__init__.py": "B = 1\n",
    "suites/package/inner.py": "from . import sibling\nfrom .. import nothing\n",
    "suites/package/sibling.py": "C = 1\n",
    "suites/data/limits.json": "{}",
    "suites/unused.py": "D = 1\n",
    "conftest.py": "E = 1\n",
}


@pytest.fixture
def project(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def inputs(root, test="test_one", **environ):
    sources = Sources(root, environ)
    return sources.inputs(root / "suites/test_it.py", test, [root / "conftest.py"],
                          lambda name: name.startswith(("test", "Test")))


@pytest.mark.parametrize("name", sorted(FILES.keys() - {"suites/unused.py", "suites/test_it.py"}))
def test_change_of_file_that_test_reaches_changes_inputs(project, name):
    before = inputs(project)
    (project / name).write_text("F = 2\n")
    assert inputs(project) != before


@pytest.mark.parametrize(("old", "new", "changes"), [
    ('"rate": 8', '"rate": 9', {"test_one", "test_two"}),
    ("run(LOAD)", "run(LOAD, 2)", {"test_one"}),
    ('"x <= 1"', '"x <= 2"', {"test_two"}),
    ("def run(load): return load", "def run(load): return 2 * load", {"test_one", "test_two"}),
    ("(self): pass", "(self): assert 1", set()),
    ("def run", "# a comment\n\ndef run", set()),
])
def test_change_in_test_file_changes_inputs_of_dependent_tests(project, old, new, changes):
    tests = ("test_one", "test_two")
    before = {test: inputs(project, test) for test in tests}
    (project / "suites/test_it.py").write_text(TEST.replace(old, new))
    assert {test for test in tests if inputs(project, test) != before[test]} == changes


def test_inputs_ignore_unused_file_and_variable(project):
    before = inputs(project)
    (project / "suites/unused.py").write_text("D = 2\n")
    assert inputs(project, OTHER="1") == before
    assert inputs(project, RATE_FACTOR="1") != inputs(project, RATE_FACTOR="2")


def test_value_that_module_computed_at_import_is_an_input(project, monkeypatch):
    module = type(sys)("deep")
    module.__file__, module.LIMIT = str(project / "suites/deep.py"), "ttft_p99 <= 1s"
    monkeypatch.setitem(sys.modules, "deep", module)
    before = inputs(project)
    module.LIMIT = "ttft_p99 <= 9s"
    assert inputs(project) != before


def test_stable_text_has_no_order_of_sets_and_no_addresses():
    assert stable({"b", "a"}) == stable({"a", "b"})
    assert stable({"a": (1, None)}) == stable({"a": [1, None]})
    assert stable(object()) is None


def test_second_copy_of_this_package_on_the_path_is_no_input(project, monkeypatch, tmp_path_factory):
    copies = tmp_path_factory.mktemp("copies")
    (copies / "pytest_llmperf").mkdir()
    (copies / "pytest_llmperf" / "__init__.py").write_text("")
    (copies / "ours.py").write_text("A = 1\n")
    monkeypatch.syspath_prepend(str(copies))
    (project / "suites/test_it.py").write_text(f"import pytest_llmperf, ours\nfrom pytest_llmperf import vllm\n{TEST}")
    files = [line for line in inputs(project) if line.startswith("file ")]
    assert any("ours.py" in line for line in files)
    assert not [line for line in files if "__init__" in line and "package" not in line]


def test_texts_of_code_are_looked_for_only_where_their_folder_has_such_a_name(project, monkeypatch):
    words = "\n".join(f"    'word {number}'," for number in range(2_000))
    (project / "suites/helpers.py").write_text(f"LIMIT = 1\nWORDS = [\n{words}\n]\n")
    asked = []
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: (asked.append(path), is_file(path))[1])
    sources = Sources(project, {})
    for test in ("test_one", "test_two"):
        sources.inputs(project / "suites/test_it.py", test, [], lambda name: name.startswith("test"))
    assert len([path for path in asked if path.name.startswith("word ")]) == 0


def test_packages_of_a_target_folder_are_not_of_the_project(tmp_path, monkeypatch):
    """`pip install --target` makes a folder with any name. A folder with the project in it is no such folder."""
    for target, installed in (("plugin", True), ("helpers", False)):
        (tmp_path / target / "numpy").mkdir(parents=True)
        if installed:
            (tmp_path / target / "numpy-2.0.dist-info").mkdir()
        monkeypatch.syspath_prepend(tmp_path / target)
        assert is_of_project(tmp_path / target / "numpy" / "__init__.py") is not installed
    monkeypatch.chdir(tmp_path / "plugin" / "numpy")
    assert is_of_project(tmp_path / "plugin" / "numpy" / "__init__.py")
