"""Least squares of seeds and sessions against statsmodels' OLS and the balanced formulas."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.formula.api import ols

from pytest_llmperf.stats.layout import layout

seed_lists = st.lists(st.integers(0, 4), min_size=1, max_size=8)
FRESH, STORED = (0, 1, 2, 0, 1), ((0, 1, 2), (0, 1), (2, 2, 1, 3), (1,))


def frame(fresh, stored, values):
    sessions = [number for number, seeds in enumerate([fresh, *stored]) for _ in seeds]
    seeds = [seed for seeds in [fresh, *stored] for seed in seeds]
    return pd.DataFrame({"session": sessions, "seed": seeds, "value": values})


def test_uneven_layout_equals_statsmodels_ols():
    values = np.random.default_rng(1).standard_normal(15)
    plan = layout(FRESH, STORED)
    model = ols("value ~ C(session) + C(seed)", frame(FRESH, STORED, values)).fit()
    contrast = np.zeros(len(model.params))
    contrast[[list(model.params.index).index(f"C(session)[T.{number}]") for number in range(1, 5)]] = -1 / 4
    contrast_test = model.t_test(contrast)
    assert plan.differ(values) == pytest.approx(contrast_test.effect.item())
    assert plan.run_squares(values) == pytest.approx(model.ssr)
    assert plan.leftover_df == model.df_resid
    assert plan.effect_runs == pytest.approx(contrast_test.sd.item() ** 2 / model.mse_resid)


def test_balanced_layout_matches_formula():
    """1/k + 1/m, and a session's level is a mean of three runs."""
    plan = layout((0, 1, 2), ((0, 1, 2),) * 5)
    assert plan.effect_runs == pytest.approx(1 / 3 + 1 / 15)
    assert plan.levels_runs == pytest.approx(1 / 3)
    assert plan.leftover_df == 18 - 3 - 6 + 1


def test_mean_squares_have_expected_values():
    """Sessions of sd 2 around runs of sd 1, uneven: both sums of squares are unbiased."""
    rng, plan, trials = np.random.default_rng(2), layout(FRESH, STORED), 40_000
    sessions = [number for number, seeds in enumerate([FRESH, *STORED]) for _ in seeds]
    values = rng.standard_normal((trials, 15)) + (2 * rng.standard_normal((trials, 5)))[:, sessions]
    assert plan.run_squares(values).mean() / plan.leftover_df == pytest.approx(1, rel=0.03)
    assert plan.session_squares(values).mean() / 3 == pytest.approx(4 + plan.levels_runs, rel=0.03)
    assert plan.differ(values).var() == pytest.approx(4 * (1 + 1 / 4) + plan.effect_runs, rel=0.03)


@given(seed_lists, st.lists(seed_lists, min_size=1, max_size=4), st.integers(0, 1000))
@settings(max_examples=50)
def test_seeds_and_a_common_level_cancel(fresh, stored, seed):
    stored = [(fresh[0], *session) for session in stored]
    plan = layout(tuple(fresh), tuple(map(tuple, stored)))
    values = np.random.default_rng(seed).standard_normal(len(fresh) + sum(map(len, stored)))
    levels = np.random.default_rng(seed + 1).standard_normal(5)
    moved = values + 7 + levels[[index for session in [fresh, *stored] for index in session]]
    assert plan.differ(moved) == pytest.approx(plan.differ(values))
    assert plan.run_squares(moved) == pytest.approx(plan.run_squares(values), abs=1e-9)
    assert plan.session_squares(moved) == pytest.approx(plan.session_squares(values))


@pytest.mark.parametrize(("fresh", "stored"), [((0, 1), ()), ((0, 1), ((0,), (2,))), ((), ((0,),))])
def test_sessions_without_a_common_seed_have_no_layout(fresh, stored):
    with pytest.raises(ValueError, match="no seed"):
        layout(fresh, stored)
