"""What is tested is the installed wheel, not the checkout that the tests lie in."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

import pytest_llmperf
from pytest_llmperf.emulator import __main__ as emulator
from pytest_llmperf.errors import UsageError
from pytest_llmperf.results.exports import request_frame

CHECKOUT = Path(__file__).parents[2]


def test_the_tests_see_the_installed_package():
    assert CHECKOUT / "pytest_llmperf" not in Path(pytest_llmperf.__file__).parents


def test_the_wheel_holds_every_module_of_the_checkout():
    installed = Path(pytest_llmperf.__file__).parent
    here = {path.relative_to(CHECKOUT / "pytest_llmperf") for path in (CHECKOUT / "pytest_llmperf").rglob("*.py")}
    there = {path.relative_to(installed) for path in installed.rglob("*.py")}
    assert here == there
    assert all((installed / path).read_bytes() == (CHECKOUT / "pytest_llmperf" / path).read_bytes() for path in here), (
        "the installed wheel is older than the checkout: run `make test`"
    )


def test_version_and_entry_point_agree():
    distribution = importlib.metadata.distribution("pytest-llmperf")
    assert distribution.version == pytest_llmperf.__version__
    (entry,) = [point for point in distribution.entry_points if point.group == "pytest11"]
    assert entry.name == entry.value  # else pytest_plugins in a conftest.py would register it twice


def test_typing_marker_is_shipped():
    assert (Path(pytest_llmperf.__file__).parent / "py.typed").exists()


def test_pytest_and_diff_need_neither_pandas_nor_an_http_server():
    """The wheels that they need have 56 MB on Linux with Python 3.11, of which scipy and numpy have 52 MB."""
    needed = {requirement.partition(">")[0] for requirement in importlib.metadata.requires("pytest-llmperf") or ()
              if "extra ==" not in requirement}
    assert needed.isdisjoint({"pandas", "pyarrow", "uvicorn", "uvloop"})


def test_table_of_requests_without_pandas_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"pip install 'pytest-llmperf\[pandas\]'"):
        request_frame([], [], [])


def test_emulator_in_real_time_without_uvicorn_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "pytest_llmperf.emulator.http.server", raising=False)
    assert emulator.main(["--hardware", "h200", "--engine", "vllm", "--", "serve", "llama-3.1-8b"]) == 2
    assert "pip install 'pytest-llmperf[emulator]'" in capsys.readouterr().err
