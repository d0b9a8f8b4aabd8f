"""Effective degrees of freedom against statsmodels' unequal-variance t test and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.weightstats import CompareMeans

from pytest_llmperf.stats.shift import satterthwaite


@given(st.integers(0, 10_000), st.integers(2, 20), st.integers(2, 20), st.floats(0.1, 10))
def test_welch_degrees_of_freedom_equal_statsmodels(seed, n, m, ratio):
    rng = np.random.default_rng(seed)
    first, other = rng.standard_normal(n), ratio * rng.standard_normal(m)
    parts = [(np.var(sample, ddof=1) / len(sample), len(sample) - 1) for sample in (first, other)]
    assert satterthwaite(parts) == pytest.approx(CompareMeans.from_data(first, other).dof_satt())


def test_equal_variance_parts_add_degrees_of_freedom():
    assert satterthwaite([(3.0, 7)]) == pytest.approx(7)
    assert satterthwaite([(2.0, 4), (2.0, 4)]) == pytest.approx(8)


def test_a_part_that_is_subtracted_costs_degrees_of_freedom():
    """(4 − 1)² / (16/10 + 1/5) = 5."""
    assert satterthwaite([(4.0, 10), (-1.0, 5)]) == pytest.approx(5)
