"""Cause and facts of a count of exceedances."""

from math import log

import pytest

from pytest_llmperf.judging.outcome import exceedance_cause, exceedance_facts
from pytest_llmperf.judging.sample import Sample
from pytest_llmperf.metrics import measure
from pytest_llmperf.results.causes.limits import RequestsDependent, StartsDiffer
from pytest_llmperf.stats.design import Count
from pytest_llmperf.stats.exceedance import Exceedance
from pytest_llmperf.testing.records import make_record


def near_the_limit(margin, over=0, **fields):
    return Exceedance(Count(over, 1000), 0.01, 1.0, 0.95, margin, Count(50, 1000), **fields)


@pytest.fixture
def run_of_30_s():
    return Sample([measure([make_record(i, intended_ms=100.0 * i) for i in range(300)])], ["s"], [1])


@pytest.mark.parametrize(("over", "few_enough"), [(0, True), (8, False)])
def test_margin_of_starts_that_prevents_pass_is_the_cause(over, few_enough):
    cause = exceedance_cause(near_the_limit(log(1.25), over), log(1.25), "over")
    assert cause == StartsDiffer(over / 1000, "over", 0.01, few_enough=few_enough, slowdown=pytest.approx(1.25))


def test_unbounded_dependence_of_requests_is_the_cause():
    cause = exceedance_cause(near_the_limit(0.0, bounded=False), 0.0, "over")
    assert isinstance(cause, RequestsDependent)
    assert cause.few_enough


def test_pass_states_longest_spell_that_runs_exclude(run_of_30_s):
    """A run of 30 s excludes spells that come about every 3 s, and no rarer ones."""
    facts = exceedance_facts(Exceedance(Count(0, 300), 0.01, 1.0, 0.95), run_of_30_s, "over")
    assert facts["longest_unseen_s"] == pytest.approx(3, rel=0.02)
    assert "longest_unseen_s" not in exceedance_facts(Exceedance(Count(1, 300), 0.01, 1.0, 0.95), run_of_30_s, "over")


def test_pass_by_level_model_states_lowered_limit_and_exceedances(run_of_30_s):
    test = Exceedance(Count(0, 300), 0.01, 1.0, 0.95, log(1.25), Count(0, 300), by_level=True)
    facts = exceedance_facts(test, run_of_30_s, "over")
    assert (facts["level_exceedances"], facts["level_margin"]) == (0, pytest.approx(0.2))


@pytest.mark.parametrize(("fraction", "effective_n"), [(1.0, None), (0.2, 20), (0.004, 0.4)])
def test_effective_n_is_stated_where_requests_depend(fraction, effective_n):
    sample = Sample([measure([make_record()])], ["s"], [1])
    facts = exceedance_facts(Exceedance(Count(4, 100), 0.1, fraction, 0.95), sample, "over")
    assert (facts["exceedances"], facts["observations"], facts["runs"]) == (4, 100, 1)
    assert facts.get("effective_n") == (None if effective_n is None else pytest.approx(effective_n))
