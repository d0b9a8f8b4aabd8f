"""How much slower the typical start, or the typical moment of one, may be than those that were seen."""

from math import exp, log, sqrt

import pytest

from pytest_llmperf.stats.reach import MOST, REACH, start_reach, time_reach

INF = float("inf")


def test_one_start_has_no_reach():
    assert start_reach([[1.0, 2.0], [8.0]], ["s", "s"], 0.95) == 0


def test_reach_of_starts_by_hand():
    """Levels e⁰, e⁰·¹ and e⁰·²: sd 0.1, t(2) 2.92. Failed requests and zeros say nothing of a level."""
    values = [[exp(-1), exp(1)], [exp(0.1), INF, 0.0], [exp(0.2)], [exp(0.2)]]
    found = start_reach(values, ["a", "b", "c", "c"], 0.95)
    assert found == pytest.approx(REACH * 2.919986 * 0.1 / sqrt(3))


def test_a_server_with_slow_seconds_may_be_slower_than_it_was():
    """Levels 0 and ln 2 in turns: the mean of 10 such is known to t(0.95, 9) · 0.365 ÷ √10, of which twice."""
    in_turns = [[10.0, 20.0] * 5]
    assert time_reach(in_turns, [1], 1.4, 0.95) == pytest.approx(REACH * 1.8331 * 0.36533 / sqrt(10), rel=1e-4)
    assert time_reach(in_turns, [1], 1.0, 0.95) == 0
    assert time_reach([[5.0] * 40] * 3, [1, 2, 3], 9.0, 0.95) == 0


def test_two_that_differ_by_a_thousand_are_no_number():
    """At the confidence of a sixth execution t is so large that e to it is none."""
    assert start_reach([[5.0], [9000.0]], ["a", "b"], 1 - 0.05 / 2**5) == MOST


def test_a_course_that_each_run_takes_is_no_slow_second():
    """A queue that grows: stretches of a run differ as much as the limit does, and those of the next run are alike."""
    growing = [[10.0 * at for at in range(1, 41)]] * 3
    assert time_reach(growing, [1, 2, 3], 1.4, 0.95) == pytest.approx(0, abs=1e-9)
    assert time_reach(growing[:1], [1], 1.4, 0.95) > log(1.5)


def test_places_of_two_runs_by_hand():
    """Ten places, of each the levels ln 10 and ln 20: sd ln 2 ÷ √2 with 10 degrees of freedom."""
    found = time_reach([[10.0] * 20, [20.0] * 20], [1, 2], 1.4, 0.95)
    assert found == pytest.approx(REACH * 1.8125 * log(2) / sqrt(2) / sqrt(20), rel=1e-4)


def test_runs_of_one_seed_are_one_draw():
    """Sent three times each, two draws of the traffic are known no better for it."""
    runs, seeds = [[10.0] * 20, [20.0] * 20], [1, 2]
    assert time_reach(runs * 3, seeds * 3, 1.4, 0.95) == pytest.approx(time_reach(runs, seeds, 1.4, 0.95))
