"""Requests within limits, and throughput by stretches of a run."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.errors import SloError
from pytest_llmperf.metrics import attained, goodput, measure, slo_attainment, window_rates
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.testing.records import make_record


def mixed_run():
    return measure([
        make_record(0, ttft_ms=50),
        make_record(1, intended_ms=100, ttft_ms=600),
        make_record(2, intended_ms=200, itl_ms=80.0),
        make_record(3, intended_ms=300, outcome=Outcome.RESET),
        make_record(4, intended_ms=9450, ttft_ms=500, chunks=2, itl_ms=50.0),
    ])


def test_every_limit_must_hold_and_failed_requests_miss():
    run = mixed_run()
    limits = {"ttft": 500, "tpot": 60}
    assert attained(run, limits) == (True, False, False, False, True)
    assert run.value("duration_s") == 10
    assert goodput(run, limits) == 0.2
    assert slo_attainment(run, limits) == 0.4


def test_attainment_without_limits_counts_all_served_requests():
    assert attained(mixed_run(), {}) == (True, True, True, False, True)


def test_single_token_request_meets_tpot_and_stall_limits():
    assert attained(measure([make_record(chunks=1)]), {"tpot": 1, "largest_stall": 1}) == (True,)


def test_goodput_on_something_unavailable_is_unavailable():
    silent = measure([replace(make_record(), chunk_tokens=None, output_tokens=None)])
    assert goodput(silent, {"tpot": 60}) is None
    assert slo_attainment(measure([]), {"ttft": 60}) is None


def test_all_failed_is_zero_attainment_and_no_goodput():
    run = measure([make_record(outcome=Outcome.RESET)])
    assert slo_attainment(run, {"ttft": 60}) == 0
    assert goodput(run, {"ttft": 60}) is None


def test_unknown_latencies_are_refused():
    with pytest.raises(SloError, match="did you mean ttft"):
        attained(mixed_run(), {"ttfft": 1})


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(1, 1e4)), min_size=1, max_size=40),
       st.sampled_from(["request_throughput", "output_throughput", "total_token_throughput", "goodput"]))
def test_window_rates_have_metric_of_run_as_mean(times, name):
    run = measure([make_record(i, intended_ms=at, ttft_ms=ttft) for i, (at, ttft) in enumerate(times)])
    limits = {"ttft": 5000.0}
    whole = goodput(run, limits) if name == "goodput" else run.value(name)
    rates = window_rates(run, name, limits)
    assert len(rates) == 10
    assert sum(rates) / 10 == pytest.approx(whole)


def test_the_last_completion_lies_in_the_last_window():
    rates = window_rates(mixed_run(), "request_throughput", {})
    assert rates == (3, *[0] * 8, 1)


def test_windows_of_anything_else_are_unavailable():
    assert window_rates(mixed_run(), "ttft_mean", {}) is None
    assert window_rates(measure([]), "request_throughput", {}) is None
    unsaid = measure([replace(make_record(), prompt_tokens=None)])
    assert window_rates(unsaid, "total_token_throughput", {}) is None
