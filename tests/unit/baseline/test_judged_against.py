"""What a comparison with stored sessions judges, and what it says where there is nothing to judge."""

from dataclasses import replace

import pytest

from pytest_llmperf.errors import SloError
from pytest_llmperf.session.against import Terms, default_primaries, incomparable, judge_against, margins_from


def terms(*primaries):
    return Terms(primaries, {}, len(primaries), "h200", "host")


@pytest.fixture
def today(make, fake_measurement):
    return replace(fake_measurement, conditions=make.CONDITIONS, primaries=("tpot_mean",))


def test_a_metric_that_older_sessions_have_not_is_compared_with_those_that_have_it(make, today):
    values = today.values("ttft_p50")
    before = make.session(0, anchor=True, tpot_mean=(20.0, 15.5), ttft_p50=(None, None))
    stored = make.stored(before, make.session(1, tpot_mean=(20.0, 15.5), ttft_p50=values))
    assert incomparable(make.TEST, today, stored, terms("ttft_p50")) is None
    (result,) = judge_against(today, stored, terms("ttft_p50"), 0)
    assert result.verdict.value != "ERROR"
    assert "of one session" in result.n


def test_a_metric_that_no_session_has_is_not_stored(make, today):
    stored = make.stored(make.session(0, anchor=True, tpot_mean=(20.0, 15.5), ttft_p50=(None, None)))
    result = incomparable(make.TEST, today, stored, terms("tpot_mean", "ttft_p50"))
    assert result.verdict.value == "INCOMPARABLE"
    assert "ttft_p50 is not stored" in result.reason


def test_a_metric_that_vanished_is_judged_and_is_an_error(make, today):
    stored = make.stored(make.session(0, anchor=True, tpot_mean=(20.0, 15.5)), primaries=("tpot_mean",))
    dumb = replace(today, metrics=tuple(NoTpot(one) for one in today.metrics))
    assert default_primaries(dumb, None, closed_loop=False) == ("ttft_p50",)
    assert default_primaries(dumb, stored, closed_loop=False) == ("ttft_p50", "tpot_mean")
    (result,) = judge_against(dumb, stored, terms("tpot_mean"), 0)
    assert result.verdict.value == "ERROR"
    assert "a run's value is missing" in result.reason


class NoTpot:
    """Metrics of answers that came as one chunk each."""

    def __init__(self, metrics):
        self.metrics = metrics

    def value(self, name):
        return None if name.startswith("tpot") else self.metrics.value(name)


@pytest.mark.parametrize("given", [[0.02, 0.05], (0.01, 0.02, 0.05), "5%", (0.1, 0.05)])
def test_margins_that_are_none_say_how_they_are_written(given):
    with pytest.raises(SloError, match=r"Write 0.05 for 5 %"):
        margins_from({"ttft_p50": given})
