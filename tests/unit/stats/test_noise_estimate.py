"""Noise estimates from A/A sessions, and the smallest detectable change that follows."""

from dataclasses import replace

import numpy as np
import pytest

from pytest_llmperf.stats.noise_estimate import NoiseEstimate, estimate_noise, runs_needed, smallest_detectable
from pytest_llmperf.stats.priors import Margins, Prior
from pytest_llmperf.stats.shift import shift

PRIOR = Prior(0.006, 0.004, 6, "a test", learnt=True)
MARGINS = Margins(0.02, 0.05)
LEVELS = (0.0, 0.3, -0.2)


def session(rng, run_sd, session_sd, seeds=(0, 1, 2), effect=0.0):
    level = effect + session_sd * rng.standard_normal()
    return [(seed, LEVELS[seed] + level + run_sd * rng.standard_normal()) for seed in seeds]


def test_effects_of_seed_and_session_are_separated_from_noise():
    rng = np.random.default_rng(1)
    estimates = [estimate_noise([session(rng, 0.01, 0.02) for _ in range(5)]) for _ in range(400)]
    assert np.mean([estimate.run_sd**2 for estimate in estimates]) == pytest.approx(0.01**2, rel=0.1)
    assert np.mean([estimate.session_sd**2 for estimate in estimates]) == pytest.approx(0.02**2, rel=0.1)
    assert (estimates[0].run_df, estimates[0].session_df) == (8, 4)


def test_uneven_session_sizes_keep_noise_estimate_unbiased():
    """The sessions have different numbers of runs, because undecided comparisons measured further runs."""
    rng = np.random.default_rng(2)
    seeds = [(0, 1, 2), (0, 1, 2, 0, 1), (0, 1, 2), (0, 1, 2, 0, 1, 2, 0, 1)]
    estimates = [estimate_noise([session(rng, 0.01, 0.02, seed) for seed in seeds]) for _ in range(400)]
    assert np.mean([estimate.run_sd**2 for estimate in estimates]) == pytest.approx(0.01**2, rel=0.1)
    assert np.mean([estimate.session_sd**2 for estimate in estimates]) == pytest.approx(0.02**2, rel=0.15)


@pytest.mark.parametrize("sessions", [[], [[(0, 1.0), (1, 2.0)]], [[(0, 1.0)], [(0, 1.1)]]])
def test_noise_estimate_from_too_few_runs_is_refused(sessions):
    with pytest.raises(ValueError, match="nothing to learn"):
        estimate_noise(sessions)


@pytest.mark.parametrize("runs", [3, 8])
def test_smallest_detectable_change_is_detected_in_90_percent(runs):
    rng, alpha, noise = np.random.default_rng(3), 0.001, NoiseEstimate(0.006, 0.004, 20, 9)
    effect = smallest_detectable(noise, PRIOR, MARGINS, alpha, runs=runs, sessions=10, seeds=3)
    today = tuple(number % 3 for number in range(runs))
    seen = [shift(session(rng, 0.006, 0.004, today, effect), [session(rng, 0.006, 0.004) for _ in range(10)],
                  PRIOR).p_worse(0.02) < alpha for _ in range(1500)]
    assert np.mean(seen) == pytest.approx(0.9, abs=0.04)


def test_needed_runs_grow_with_noise_until_no_number_suffices():
    def needed(run_sd, session_sd=0.003):
        return runs_needed(NoiseEstimate(run_sd, session_sd, 20, 9), PRIOR, MARGINS, 0.0005, 0.05, sessions=10, seeds=3)

    assert needed(0.002) < needed(0.007)
    assert needed(0.01, session_sd=0.02) is None


@pytest.mark.parametrize(("learnt", "fewest"), [(False, None), (True, 3)])
def test_needed_runs_depend_on_known_spread_and_first_look(learnt, fewest):
    """However quiet: no number of runs finds +20 % while the spread of sessions is unknown, then no fewer than 3."""
    quiet = NoiseEstimate(0.0002, 0.0001, 20, 9)
    prior = replace(PRIOR, learnt=learnt)
    assert runs_needed(quiet, prior, MARGINS, 0.0005, 0.2, sessions=2, seeds=3) == fewest
