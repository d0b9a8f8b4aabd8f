"""Today against stored sessions: exact cases, formulas by hand, coverage, and what must not matter."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from pytest_llmperf.stats.layout import layout
from pytest_llmperf.stats.priors import Prior
from pytest_llmperf.stats.shift import sessions_by_host, shift, spread

SEEDS = (0, 1, 2)
NO_PRIOR = Prior(1e-6, 1e-9, 1e-9, "nearly none")
CERTAIN = Prior(0.02, 0.01, 1e12, "taken as known")
PRIOR = Prior(0.005, 0.004, 6, "test")


def session(rng, level=0.0, run_sd=0.01, seeds=SEEDS):
    return [(seed, level + 0.1 * seed + run_sd * rng.standard_normal()) for seed in seeds]


@pytest.fixture
def rng():
    return np.random.default_rng(4)


def test_shift_without_prior_equals_t_test_of_new_session(rng):
    """As many runs as the stored sessions have: only the sessions' own spread counts, with D − 1 degrees of freedom."""
    stored = [session(rng, 0.05 * rng.standard_normal()) for _ in range(6)]
    fresh = session(rng, 0.2)
    estimate = shift(fresh, stored, NO_PRIOR)
    means = [np.mean([value for _, value in session]) for session in stored]
    half_width = scipy_stats.t.ppf(0.999, 5) * np.std(means, ddof=1) * sqrt(1 + 1 / 6)
    effect = np.mean([value for _, value in fresh]) - np.mean(means)
    assert estimate.effect == pytest.approx(effect)
    assert estimate.df == pytest.approx(5, rel=1e-4)
    assert (estimate.lower(0.999), estimate.upper(0.999)) == pytest.approx(
        (effect - half_width, effect + half_width), rel=1e-4
    )


@pytest.mark.parametrize(("seeds", "sessions"), [(SEEDS, 1), (SEEDS, 10), ((0, 1, 2, 0, 1, 2), 4)])
def test_shift_with_certain_prior_matches_formula(rng, seeds, sessions):
    estimate = shift(session(rng, seeds=seeds), [session(rng) for _ in range(sessions)], CERTAIN)
    expected = 0.01**2 * (1 + 1 / sessions) + 0.02**2 * (1 / len(seeds) + 1 / (3 * sessions))
    assert estimate.se == pytest.approx(sqrt(expected), rel=1e-6)
    assert (estimate.sessions, estimate.stored_runs, len(estimate.differences)) == (sessions, 3 * sessions, len(seeds))


def test_shrinkage_of_shift_matches_hand_calculation():
    """One seed, run noise unknown to the data: run² = 1. Levels −2 and 2: mean square 8, of which 1 is runs'.

    Prior session² = 4 with 3 degrees of freedom against 1: (3·4 + 1·7)/4 = 4.75. SE² = 1.5·4.75 + 1 + 1/2.
    """
    estimate = shift([(0, 10.0)], [[(0, -2.0)], [(0, 2.0)]], Prior(1, 2, 3, "test"))
    assert (estimate.run_sd, estimate.session_sd) == (pytest.approx(1), pytest.approx(sqrt(4.75)))
    assert estimate.se**2 == pytest.approx(1.5 * 4.75 + 1.5)
    parts = (1.5 * 0.75 * 4, 1.5 * 0.25 * 8, 1.5 - 1.5 * 0.25)
    assert estimate.df == pytest.approx(sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 1 + parts[2] ** 2 / 3))


def test_closely_agreeing_sessions_shrink_session_sd_to_prior():
    estimate = shift([(0, 0.0)], [[(0, 1.0)], [(0, 1.0)]], Prior(1, 2, 3, "test"))
    assert estimate.session_sd == pytest.approx(sqrt(3 / 4) * 2)


def test_shift_against_single_session_is_provisional_and_uses_prior(rng):
    alone, pair = (shift(session(rng), [session(rng)] * count, PRIOR) for count in (1, 2))
    assert alone.sessions == 1
    assert pair.sessions == 2
    assert alone.session_sd >= PRIOR.session_sd


def test_noisier_runs_than_the_prior_says_make_noisier_sessions():
    """Leftovers of ±0.01 where the prior says 0.001: its session sd grows in proportion to the data's own."""
    calm = Prior(0.001, 0.001, 6, "test")
    estimate = shift([(0, 0.0), (1, 0.02)], [[(0, 0.02), (1, 0.0)]], calm)
    squares = 4 * 0.01**2
    assert estimate.session_sd == pytest.approx(0.001 * sqrt(squares / 0.001**2))


def test_standard_error_falls_with_more_sessions_and_runs(rng):
    def se(runs, sessions):
        return np.mean([shift(session(rng, seeds=SEEDS * runs), [session(rng) for _ in range(sessions)], PRIOR).se
                        for _ in range(100)])

    assert se(1, 10) < se(1, 3) < se(1, 1)
    assert se(3, 10) < se(1, 10)


@pytest.mark.parametrize(("sessions", "seeds"), [(3, SEEDS), (10, (0, 1, 2, 0, 1)), (5, (0, 1, 2) * 3)])
def test_shift_limits_have_stated_coverage(sessions, seeds):
    """Noise drawn as the prior believes it (scaled inverse χ²): the limit is exceeded in its share of trials."""
    rng, trials, prior = np.random.default_rng(5), 40_000, Prior(0.005, 0.004, 6, "test")
    run, between = (sd * np.sqrt(prior.df / rng.chisquare(prior.df, (trials, 1))) for sd in (0.005, 0.004))
    plan = layout(seeds, (SEEDS,) * sessions)
    numbers = [0] * len(seeds) + [number for number in range(1, sessions + 1) for _ in SEEDS]
    values = run * rng.standard_normal((trials, len(numbers)))
    values += (between * rng.standard_normal((trials, sessions + 1)))[:, numbers]
    squares = zip(plan.run_squares(values).tolist(), plan.session_squares(values).tolist(), strict=True)
    estimated = [spread(plan, *each, prior) for each in squares]
    variance, df = (np.array([getattr(each, name) for each in estimated]) for name in ("variance", "df"))
    for alpha in (0.05, 0.001):
        beyond = plan.differ(values) / np.sqrt(variance) > scipy_stats.t.ppf(1 - alpha, df)
        assert beyond.mean() <= alpha + 3 * sqrt(alpha / trials)
        assert beyond.mean() >= alpha / 5


@given(st.integers(0, 1000), st.floats(-5, 5))
@settings(max_examples=30)
def test_larger_fresh_values_change_effect_but_not_standard_error(seed, more):
    rng = np.random.default_rng(seed)
    fresh, stored = session(rng, seeds=(0, 1, 2, 2)), [session(rng, seeds=(0, 2)), session(rng, seeds=(1, 2, 0))]
    first, other = (shift([(s, value + by) for s, value in fresh], stored, PRIOR) for by in (0, more))
    assert other.effect - first.effect == pytest.approx(more)
    assert (other.se, other.df) == pytest.approx((first.se, first.df))
    assert np.subtract(other.differences, first.differences) == pytest.approx([more] * 4)


def test_p_values_equal_scipy_t_distribution(rng):
    estimate = shift(session(rng, 0.03), [session(rng) for _ in range(4)], PRIOR)
    assert estimate.p_worse(0.01) == pytest.approx(
        scipy_stats.t.sf((estimate.effect - 0.01) / estimate.se, estimate.df)
    )
    assert estimate.p_better(0.01) == pytest.approx(
        scipy_stats.t.sf((-estimate.effect - 0.01) / estimate.se, estimate.df)
    )
    assert estimate.p_worse(estimate.lower(0.999)) == pytest.approx(0.001)


def test_limits_of_negated_shift_are_mirrored(rng):
    estimate = shift(session(rng, 0.03), [session(rng) for _ in range(4)], PRIOR)
    assert estimate.negated().upper(0.99) == pytest.approx(-estimate.lower(0.99))
    assert estimate.negated().negated() == estimate


@pytest.mark.parametrize(("values", "carried"), [
    ([10, 10, 10], True), ([13, 13, 4], False), ([12, 12, 6], True),  # of three, all
    ([10, 10, 10, 10, 0], True), ([15, 15, 15, 0, 0], False),  # of five, four
    ([9] * 6 + [0] * 2, True), ([9] * 5 + [0] * 3, False),   # of eight, six
])
def test_change_is_shown_only_by_most_of_the_runs(values, carried):
    seeds = range(len(values))
    estimate = shift(list(zip(seeds, values, strict=True)), [[(seed, 0.0) for seed in seeds]], PRIOR)
    assert estimate.shown_by_most_runs(0.02) is carried
    assert (
        shift([(s, -v) for s, v in enumerate(values)], [[(s, 0.0) for s in seeds]], PRIOR)
        .negated()
        .shown_by_most_runs(0.02)
        is carried
    )


def test_sessions_and_runs_without_a_pair_are_left_out(rng):
    stored = [session(rng), session(rng)]
    plain = shift(session(np.random.default_rng(1)), stored, PRIOR)
    more = shift([*session(np.random.default_rng(1)), (77, 5.0)], [*stored, [(88, 9.0)]], PRIOR)
    assert (more.effect, more.sessions, more.differences) == (pytest.approx(plain.effect), 2, plain.differences)


@pytest.mark.parametrize(("fresh", "stored"), [([], [[(0, 1.0)]]), ([(0, 1.0)], []), ([(0, 1.0)], [[(1, 1.0)]])])
def test_shift_without_common_seed_is_refused(fresh, stored):
    with pytest.raises(ValueError, match="are in none of the"):
        shift(fresh, stored, PRIOR)


def test_new_host_merges_sessions_of_one_host(rng):
    stored = [session(rng) for _ in range(5)]
    assert sessions_by_host(stored, ["a", "a", "b", "a", "b"], "a") == stored
    merged = sessions_by_host(stored, ["a", "a", "b", "a", "b"], "c")
    assert merged == [[*stored[0], *stored[1], *stored[3]], [*stored[2], *stored[4]]]
    assert shift(session(rng), sessions_by_host(stored, ["a"] * 5, "c"), PRIOR).sessions == 1
