"""Bracketing and bisection against limits that are known."""

import pytest

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.session.bisection import MOST_STEPS, TriedRate, bracket_of, final_step, halvings, search_rate


def limit_at(knee, open_from=None, open_to=None):
    """Within up to the knee and over above; what lies between `open_from` and `open_to` is proven to be neither."""

    def judge(rate):
        verdict = Verdict.PASS if rate <= knee else Verdict.FAIL
        if open_from is not None and open_from < rate <= open_to:
            verdict = Verdict.INCONCLUSIVE
        return TriedRate(rate, verdict, rate <= knee)

    return judge


@pytest.mark.parametrize("knee", [0.3, 7.9, 8.0, 8.1, 100, 3000])
@pytest.mark.parametrize("precision", [0.02, 0.1])
def test_knee_lies_within_precision_between_tested_rates(knee, precision):
    searched = search_rate(limit_at(knee), 8, precision)
    assert searched.highest_within <= knee < searched.lowest_over
    assert searched.lowest_over / searched.highest_within <= 1 + precision
    assert len(searched.points) < 2 * MOST_STEPS
    rates = [point.rate for point in searched.points]
    assert len(set(rates)) == len(rates)  # nothing is measured twice


@pytest.mark.parametrize("precision", [0.02, 0.04, 0.1])
def test_number_of_further_rates_is_known_once_the_limit_is_bracketed(precision):
    points = search_rate(limit_at(31), 8, precision).points
    brackets = [bracket_of(points[:count]) for count in range(len(points) + 1)]
    bracketed = [(count, *bracket) for count, bracket in enumerate(brackets) if bracket is not None]
    assert bracketed[0] == (3, 16, 32)  # 8 and 16 were within, 32 over
    assert [halvings(low, high, precision) for _, low, high in bracketed] == list(range(len(points) - 3, -1, -1))


def test_contradicting_rates_give_no_bracket_of_the_limit():
    """Noise near the limit: a rate was within the SLOs, and a lower rate was over them."""
    judge = limit_at(20)
    points = [judge(16), TriedRate(12, Verdict.FAIL, holds=False)]
    assert bracket_of(points) is None


def test_undecided_rates_follow_measured_value_but_are_not_proven():
    searched = search_rate(limit_at(20, open_from=16.5, open_to=24), 8, 0.02)
    assert searched.highest_within <= 20 < searched.lowest_over
    assert searched.highest_within > 19.6
    assert searched.proven <= 16.5


def test_search_in_which_every_rate_meets_the_slo_has_no_upper_bound():
    assert search_rate(limit_at(1e9), 1, 0.1).lowest_over is None


def test_search_in_which_no_rate_meets_the_slo_has_no_lower_bound():
    none = search_rate(limit_at(0), 1, 0.1)
    assert none.highest_within is None
    assert none.proven is None
    assert none.points[-1].rate == 1 / 2**MOST_STEPS


def test_search_ends_at_rate_to_beat_that_is_proven_over_the_slo():
    searched = search_rate(limit_at(5), 8, 0.1, to_beat=8)
    assert [point.rate for point in searched.points] == [8]
    assert searched.highest_within is None
    open_at_first = search_rate(limit_at(5, open_from=6, open_to=10), 8, 0.1, to_beat=8)
    assert open_at_first.highest_within <= 5 < open_at_first.lowest_over
    faster = search_rate(limit_at(20), 8, 0.1, to_beat=8)
    assert faster.points == search_rate(limit_at(20), 8, 0.1).points


@pytest.mark.parametrize(("knee", "count"), [(8.1, 2), (7.9, 2), (31, 7), (3, 6)])
def test_search_with_small_first_factor_finds_limit_nearby(knee, count):
    searched = search_rate(limit_at(knee), 8, 0.2, first_factor=final_step(0.2))
    assert searched.highest_within <= knee < searched.lowest_over
    assert searched.lowest_over / searched.highest_within == pytest.approx(final_step(0.2))
    assert len(searched.points) == count
