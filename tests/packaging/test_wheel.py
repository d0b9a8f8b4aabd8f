"""What is tested is the installed wheel, not the checkout that the tests lie in."""

import importlib.metadata
from pathlib import Path

import pytest_llmperf

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
