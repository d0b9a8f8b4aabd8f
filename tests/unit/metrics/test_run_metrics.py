"""All metrics of one run."""

from math import inf
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.errors import SloError
from pytest_llmperf.metrics import STATS, all_metrics, measure, percentile
from pytest_llmperf.metrics.goodput import window_rates
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.testing.records import make_record

finite = st.floats(0, 1e9)


@given(st.lists(finite, min_size=1), st.floats(0, 1))
def test_percentile_equals_numpy_percentile(values, share):
    assert percentile(sorted(values), share) == pytest.approx(float(np.percentile(values, share * 100)))


@pytest.mark.parametrize(("values", "share", "expected"), [
    ([1.0, 2.0, inf], 0.5, 2.0), ([1.0, inf, inf], 0.5, inf), ([1.0, 2.0, inf, inf], 0.5, inf), ([1.0, inf], 0.0, 1.0),
])
def test_percentile_uses_infinite_latency_as_largest_value(values, share, expected):
    assert percentile(values, share) == expected


def test_percentile_of_no_values_is_an_error():
    with pytest.raises(ValueError, match="0 values"):
        percentile([], 0.5)


@given(st.lists(st.floats(0.001, 1e5), min_size=1, max_size=30))
def test_statistics_are_in_milliseconds_and_ordered(ttfts):
    run = measure([make_record(i, intended_ms=i, ttft_ms=ttft) for i, ttft in enumerate(ttfts)])
    p50, p90, p95, p99, largest = (run.value(f"ttft_{stat}") for stat in ("p50", "p90", "p95", "p99", "max"))
    assert p50 <= p90 <= p95 <= p99 <= largest == pytest.approx(max(ttfts), abs=1e-6)
    assert run.value("ttft_mean") == pytest.approx(sum(ttfts) / len(ttfts), abs=1e-6)
    assert run.value("ttft_median") == p50
    assert len(run.samples("ttft")) == len(ttfts)


def test_latency_metrics_exclude_failed_requests():
    """Fault 35."""
    run = measure([make_record(0), make_record(1, intended_ms=1, ttft_ms=9000, itl_ms=900.0, outcome=Outcome.TIMEOUT)])
    assert run.value("ttft_max") == 50
    assert run.value("itl_max") == 10
    assert run.value("error_rate") == 0.5
    assert run.by_request("ttft") == ((50_000_000,), None)


@pytest.mark.parametrize(("prompt", "answer", "size", "empty"), [
    (8, 10, 16, 1 - 17 / 32),  # the last token of an answer has no KV cache
    (7, 10, 16, 0.0), (8, 10, 1, 0.0), (100, 10, 16, 1 - 109 / 112),
])
def test_fragmentation_is_empty_share_of_last_blocks(prompt, answer, size, empty):
    record = make_record(0, prompt_tokens=prompt, chunks=answer)
    assert measure([record], {"block_size": size}).value("kv_fragmentation") == pytest.approx(empty)


def test_fragmentation_without_block_size_is_unavailable():
    assert measure([make_record(0)], {}).value("kv_fragmentation") is None


def test_send_delay_includes_failed_requests():
    run = measure([make_record(0), make_record(1, intended_ms=1, send_delay_ms=70, outcome=Outcome.RESET)])
    assert run.value("send_delay_max") == 70


def test_throughputs_over_first_intended_to_last_content():
    run = measure([make_record(0, ttft_ms=100, itl_ms=100.0, chunks=5, prompt_tokens=20),
                   make_record(1, intended_ms=1000, ttft_ms=500, itl_ms=100.0, chunks=6, prompt_tokens=20),
                   make_record(2, intended_ms=1500, ttft_ms=9000, outcome=Outcome.RESET)])
    assert run.value("duration_s") == 2.0
    assert run.value("request_throughput") == 1.0
    assert run.value("output_throughput") == 5.5
    assert run.value("total_token_throughput") == 25.5
    assert run.value("error_rate") == pytest.approx(1 / 3)


def test_requests_that_fail_at_the_end_do_not_shorten_the_run():
    """Half of 8 requests, one a second, are refused: the rate of good ones is a half, and no window hides it."""
    records = [make_record(index, intended_ms=1000 * index, chunks=2, prompt_tokens=20,
                           outcome=Outcome.OK if index < 4 else Outcome.HTTP_STATUS) for index in range(8)]
    run = measure(records)
    assert run.value("duration_s") == 7.0
    assert run.value("request_throughput") == 4 / 7
    assert fmean(window_rates(run, "goodput", {"ttft": 500})) == pytest.approx(4 / 7)


def test_coalesced_share_is_of_the_gaps():
    assert measure([make_record(chunks=11, coalesced_chunks=2)]).value("coalesced_share") == 0.2


@pytest.mark.parametrize("records", [[], [make_record(outcome=Outcome.RESET)]])
def test_without_a_served_request_everything_is_missing_not_zero(records):
    values = measure(records).all()
    fields = {name: value for name, value in values.items() if value is not None and not name.startswith("send_delay")}
    counts = {"error_rate": 1.0, "rate_limited_rate": 0.0, "cancelled_rate": 0.0, "retries": 0,
              "retried_prompt_tokens": 0, "hung_requests": 0}
    assert fields == (counts if records else {})


def test_order_of_records_does_not_matter():
    records = [make_record(i, intended_ms=10 * i, ttft_ms=5 + i) for i in range(10)]
    assert measure(records[::-1]) == measure(records)


def test_run_values_cover_every_registered_metric():
    values = measure([make_record()]).all()
    undefined = {"goodput", "slo_attainment", "spec_acceptance_rate_pos0", "hit_rate_turn2plus", "recovery_time"}
    assert set(all_metrics()) - undefined == set(values)
    assert all(f"itl_{stat}" in values for stat in STATS)


@pytest.mark.parametrize("ask", [lambda run: run.value("tftt_p99"), lambda run: run.samples("ttf"),
                                 lambda run: run.by_request("ttf")])
def test_misspelled_metric_is_refused_with_suggestion(ask):
    with pytest.raises(SloError, match="did you mean ttft"):
        ask(measure([make_record()]))
