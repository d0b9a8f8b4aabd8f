"""Holm's step-down against statsmodels and by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from pytest_llmperf.stats.decision import holm

p_values = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(p_values, st.sampled_from([0.0003, 0.01, 0.05, 0.3]))
@settings(max_examples=25, deadline=None)
def test_holm_rejections_equal_statsmodels(ps, alpha):
    assert holm(ps, alpha) == list(multipletests(ps, alpha, method="holm")[0])


@pytest.mark.parametrize(("ps", "rejected"), [
    ([0.010, 0.024, 0.04], [True, True, True]),     # 0.05/3, 0.05/2, 0.05/1
    ([0.04, 0.024, 0.010], [True, True, True]),     # whatever their order
    ([0.010, 0.026, 0.04], [True, False, False]),   # the second stands and saves the third
    ([0.017, 0.001, 0.001], [True, True, True]),
    ([0.017, 0.018, 0.019], [False, False, False]),
])
def test_holm_rejections_match_hand_calculation(ps, rejected):
    assert holm(ps, 0.05) == rejected


def test_holm_without_tests_or_alpha_rejects_no_hypothesis():
    assert holm([], 0.05) == []
    assert holm([0.0, 0.5], 0.0) == [False, False]
