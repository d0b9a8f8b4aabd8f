"""What a suite may import is listed once, exists, and is sorted."""

import pytest_llmperf


def test_every_public_name_exists():
    for name in pytest_llmperf.__all__:
        assert getattr(pytest_llmperf, name) is not None


def test_the_list_is_sorted_and_complete():
    assert pytest_llmperf.__all__ == sorted(pytest_llmperf.__all__)
    assert set(pytest_llmperf.__all__) == set(pytest_llmperf._HOME)
