"""Change points: found from the second session on, placed at the right session, and none for one disturbed session."""

from math import log1p
from random import Random

import pytest

from pytest_llmperf.stats.change_points import changes


def series(*parts, sd=0.005, seed=1):
    """Levels with noise: (number of sessions, level) of each part."""
    rng = Random(seed)
    return [level + rng.gauss(0, sd) for count, level in parts for _ in range(count)]


def test_change_is_found_at_its_second_session_and_placed_at_its_first():
    levels = series((30, 0.0), (2, log1p(0.03)))
    assert changes(levels[:-1]).points == ()
    (point,) = changes(levels).points
    assert (point.at, point.found) == (30, 31)
    assert point.low < log1p(0.03) < point.high


def test_change_point_is_moved_to_the_right_session_by_later_sessions():
    levels = [*series((30, 0.0), sd=0.002), 0.012, *series((1, 0.03), (8, 0.03), sd=0.002, seed=2)]
    (point,) = changes(levels).points
    assert (point.at, point.found) == (31, 31)  # the look after session 31 compares 30 and 31 with the sessions before
    assert point.low < 0.03 < point.high


def test_change_back_to_old_level_is_a_second_change_point():
    points = changes(series((20, 0.0), (10, 0.05), (10, 0.0))).points
    assert [point.at for point in points] == [20, 30]
    assert [point.shift > 0 for point in points] == [True, False]


def test_small_change_is_found_by_more_sessions():
    points = changes(series((60, 0.0), (16, 0.012), sd=0.008, seed=4)).points
    assert len(points) == 1
    assert points[0].found - points[0].at > 1


@pytest.mark.parametrize("seed", range(5))
def test_one_disturbed_session_makes_no_change_point(seed):
    levels = series((20, 0.0), (1, 0.05), (1, 0.012), sd=0.002, seed=seed)
    assert changes(levels).points == ()


def test_series_with_too_few_sessions_has_no_change_point():
    assert changes([0.0]).sd is None
    young = changes(series((6, 0.0), (2, 0.5)))
    assert young.points == ()
    assert young.sessions_needed(log1p(0.03)) is None


def test_equal_sessions_need_a_change_larger_than_rounding():
    assert changes([1.0] * 20 + [1.0001] * 2).points == ()
    assert [point.at for point in changes([1.0] * 20 + [1.01] * 2).points] == [20]


@pytest.mark.parametrize(("sd", "fewest", "most"), [(0.005, 2, 2), (0.012, 4, 8), (0.05, None, None)])
def test_stated_number_of_sessions_grows_with_the_sd(sd, fewest, most):
    needed = changes(series((60, 0.0), sd=sd, seed=3)).sessions_needed(log1p(0.03))
    assert needed is None if fewest is None else fewest <= needed <= most


def test_noise_alone_seldom_makes_a_change_point():
    """3,000 weeks of five sessions: about 3 alarms are expected at most; 9 would be seen once in 300 such tests."""
    found = sum(len(changes(series((70, 0.0), seed=seed)).points) for seed in range(215))
    assert found <= 8
