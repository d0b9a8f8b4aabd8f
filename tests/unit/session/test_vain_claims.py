"""A claim that needs many more server starts than it makes ends at the first look."""

import pytest

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.comparisons import (
    EndpointStartsUnknown,
    MachineDrifts,
    PairsTooFew,
    RatioNearLimit,
    StartsTooFew,
)
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.session.capacity import search_terms
from pytest_llmperf.session.sequential_claim import MOST_STARTS, MOST_STARTS_TOGETHER, _with_most_starts, in_vain


def open_claim(cause):
    return CheckResult("claim", Verdict.INCONCLUSIVE, "ttft_p50(b) / ttft_p50(a)", cause=cause,
                       facts={"start_sd": 0.1})


@pytest.mark.parametrize(("cause", "most_starts", "vain"), [
    (StartsTooFew(15), MOST_STARTS, True),
    (StartsTooFew(15), MOST_STARTS_TOGETHER, True),
    (StartsTooFew(5), MOST_STARTS_TOGETHER, False),
    (RatioNearLimit(), MOST_STARTS, True),
    (PairsTooFew(3), MOST_STARTS, False),
    (MachineDrifts(0.2), MOST_STARTS, False),
    (EndpointStartsUnknown("ttft_p50", 0.03), MOST_STARTS, True),
    (EndpointStartsUnknown("ttft_p50", 0.08), MOST_STARTS, False),
    (EndpointStartsUnknown("ttft_p50"), MOST_STARTS, False),
])
def test_claim_ends_where_needed_starts_exceed_twice_possible_starts(cause, most_starts, vain):
    assert in_vain(open_claim(cause), most_starts) is vain


def test_ended_claim_names_needed_and_possible_starts():
    text = reason_text(_with_most_starts(open_claim(StartsTooFew(15)), MOST_STARTS))
    assert text.startswith("about 15 server starts per side decide")
    assert "a claim makes at most 2" in text


@pytest.mark.parametrize(("quick", "precision", "rates"), [(False, 0.04, 8), (True, 0.04, 8), (True, 0.2, 5)])
def test_rates_of_a_search_share_one_error(quick, precision, rates):
    looks = search_terms("ttft_p99 <= 1s", precision, quick=quick).confidence_of_looks
    assert rates * sum(1 - confidence for confidence in looks) == pytest.approx(0.05)
