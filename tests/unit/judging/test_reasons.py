"""What a count rests on, and why it came out as it did."""

from math import log

import pytest

from pytest_llmperf.judging.reasons import sample_text, verdict_reason
from pytest_llmperf.judging.sample import Sample
from pytest_llmperf.metrics import measure
from pytest_llmperf.stats.design import Count
from pytest_llmperf.stats.exceedance import Exceedance
from pytest_llmperf.testing.records import make_record


def near_the_limit(reach, over=0, **fields):
    return Exceedance(Count(over, 1000), 0.01, 1.0, 0.95, reach, Count(50, 1000), **fields)


@pytest.mark.parametrize(("reach", "words"), [
    (log(1.25), "the server starts differ so much that others may be 25 % slower; measure on more starts"),
    (log(2.75), "may be 2.8 times as slow"),
    (log(40), "the server starts are too few, and differ too much, to tell what others may bring; "),
])
def test_what_stands_against_a_pass(reach, words):
    reason = verdict_reason(near_the_limit(reach), "over the limit", reach)
    assert reason.startswith("0 % are over the limit, which would be few enough, but")
    assert words in reason


def test_it_is_not_few_enough_where_more_would_be_needed():
    reason = verdict_reason(near_the_limit(log(1.25), over=8), "over the limit", log(1.25))
    assert reason.startswith("0.8 % are over the limit, but the server starts differ")


def test_dependent_requests_of_one_draw_ask_for_more_runs():
    reason = verdict_reason(near_the_limit(0.0, bounded=False), "over the limit", 0.0)
    assert reason.startswith("0 % are over the limit, which would be few enough, but neighbouring requests are more")
    assert reason.endswith("measure more runs, of other seeds")


def test_pass_states_the_longest_period_not_excluded():
    """A run of 30 s bounds what comes about every 3 s, and nothing slower."""
    sample = Sample([measure([make_record(i, intended_ms=100.0 * i) for i in range(300)])], ["s"], [1])
    told = sample_text(Exceedance(Count(0, 300), 0.01, 1.0, 0.95), sample, "over")
    assert told.endswith("conditional on this server start, slow spells rarer than one in 3 s are not excluded")
    assert "excluded" not in sample_text(Exceedance(Count(1, 300), 0.01, 1.0, 0.95), sample, "over")


def test_pass_by_the_tail_model_names_the_model():
    sample = Sample([measure([make_record(i, intended_ms=100.0 * i) for i in range(300)])], ["s"], [1])
    found = Exceedance(Count(0, 300), 0.01, 1.0, 0.95, log(1.25), Count(0, 300), by_level=True)
    assert ("by the level model (slow changes move all requests by one factor): 0 beyond a limit 20 % lower"
            in sample_text(found, sample, "over"))


@pytest.mark.parametrize(("worth", "words"), [
    (1.0, "4 of 100 over, 1 run"),
    (0.2, "4 of 100 over, effective n 20, 1 run"),
    (0.004, "4 of 100 over, effective n below 1, 1 run"),
])
def test_what_a_count_rests_on(worth, words):
    sample = Sample([measure([make_record()])], ["s"], [1])
    assert sample_text(Exceedance(Count(4, 100), 0.1, worth, 0.95), sample, "over").startswith(words)
