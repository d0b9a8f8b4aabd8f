"""What a count rests on, and why it came out as it did."""

from math import log

import pytest

from pytest_llmperf.metrics import measure
from pytest_llmperf.slo.reasons import rests_on, why
from pytest_llmperf.slo.sample import Sample
from pytest_llmperf.stats.design import Count
from pytest_llmperf.stats.exceedance import Exceedance
from pytest_llmperf.stats.reach import Reach
from pytest_llmperf.testing.records import make_record


def near_the_limit(reach, over=0):
    return Exceedance(Count(over, 1000), 0.01, 1.0, 0.95, reach.both, Count(50, 1000))


@pytest.mark.parametrize(("reach", "words"), [
    (Reach(time=log(1.25)), "requests of some times were so much slower than those of others that at other times they "
                            "may be 25 % slower; measure more requests or more runs"),
    (Reach(time=log(2.75)), "may be 2.8 times as slow"),
    (Reach(time=log(3.5)), "requests that were served at once are one observation: there are too few"),
    (Reach(starts=log(1.25), time=log(1.1)), "the server starts differ so much that others may be 25 % slower; measure "
                                             "on more starts"),
    (Reach(starts=log(40)), "the server starts are too few, and differ too much, to tell what others may bring; "),
])
def test_what_stands_against_a_pass(reach, words):
    reason = why(near_the_limit(reach), "over the limit", reach)
    assert reason.startswith("0 % are over the limit, which would be few enough, but")
    assert words in reason


def test_it_is_not_few_enough_where_more_would_be_needed():
    reach = Reach(time=log(1.25))
    reason = why(near_the_limit(reach, over=8), "over the limit", reach)
    assert reason.startswith("0.8 % are over the limit, but requests of some times")


@pytest.mark.parametrize(("worth", "words"), [
    (1.0, "4 of 100 over, 1 run"),
    (0.2, "4 of 100 over, effective n 20, 1 run"),
    (0.004, "4 of 100 over, effective n below 1, 1 run"),
])
def test_what_a_count_rests_on(worth, words):
    sample = Sample([measure([make_record()])], ["s"], [1])
    assert rests_on(Exceedance(Count(4, 100), 0.1, worth, 0.95), sample, "over").startswith(words)
