"""What a suite may import is listed once, exists, and is sorted."""

import inspect

import pytest_llmperf


def test_every_public_name_exists():
    for name in pytest_llmperf.__all__:
        assert getattr(pytest_llmperf, name) is not None


def test_the_list_is_sorted_and_complete():
    assert pytest_llmperf.__all__ == sorted(pytest_llmperf.__all__)
    assert set(pytest_llmperf.__all__) == set(pytest_llmperf._HOME)


def test_documentation_of_public_functions_names_raised_errors():
    """The public functions and the methods of `Perf` validate their arguments, so each docstring names the errors."""
    public = [getattr(pytest_llmperf, name) for name in pytest_llmperf.__all__]
    methods = [method for name, method in vars(pytest_llmperf.Perf).items() if not name.startswith("_")]
    takers = [function for function in (*public, *methods)
              if inspect.isfunction(function) and set(inspect.signature(function).parameters) - {"self"}]
    assert len(takers) > 20
    assert [taker.__name__ for taker in takers if "Raises:" not in (taker.__doc__ or "")] == []
