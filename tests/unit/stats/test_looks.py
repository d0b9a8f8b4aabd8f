"""What of α is spent when: never more in all than the suite has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.stats.decision import LOOKS, SUITE_ALPHA, alpha_at, spent_share


def spending(counts, primaries=3, suite=30):
    earlier_counts = [0, *counts]
    return [alpha_at(runs, looked, primaries=primaries, suite_primaries=suite)
            for looked, runs in zip(earlier_counts, counts, strict=False)]


def test_first_look_spends_half_of_alpha_and_later_looks_a_quarter():
    assert spending(LOOKS) == pytest.approx([0.0005, 0.00025, 0.00025])


def test_skipped_early_look_leaves_all_alpha_for_late_look():
    assert spending([8]) == pytest.approx([0.001])
    assert spending([3, 8]) == pytest.approx([0.0005, 0.0005])


def test_too_few_runs_spend_no_alpha():
    assert spent_share(2) == 0


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 30))
def test_all_looks_of_all_tests_together_spend_at_most_the_suites(counts, primaries):
    assert sum(spending(sorted(counts), primaries)) \
        <= SUITE_ALPHA * primaries / 30 + 1e-12


@pytest.mark.parametrize(("primaries", "suite"), [(0, 3), (4, 3)])
def test_impossible_number_of_primary_metrics_is_refused(primaries, suite):
    with pytest.raises(ValueError, match="primary metrics"):
        alpha_at(3, 0, primaries=primaries, suite_primaries=suite)
